// Converts jobs and images to and from bytes in the job store (proto/tessera/internal/stored_job.proto).
//
// Bytes from the disk are checked like external input: any bytes yield either a job within the limits of a validated
// one, or an error. An older or a newer program may have written them.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/api/job_request.h"
#include "server/jobs/job_record.h"

namespace tessera::server {

struct StoredJob {
  std::string tenant;
  JobRequest request;
  std::string trace_parent;
  std::string idempotency_key_hash;  // empty: none
};

// INVALID_ARGUMENT if parsing would refuse the result.
absl::StatusOr<std::string> SerializeJob(const StoredJob& job);

// DATA_LOSS: damaged bytes. FAILED_PRECONDITION: a newer program wrote them, and this one would misinterpret them. The
// messages may be shown to the job's user.
absl::StatusOr<StoredJob> ParseStoredJob(absl::string_view bytes);
// Parses into `job`, overwriting all of it and reusing its memory; its contents are unspecified after an error.
absl::Status ParseStoredJob(absl::string_view bytes, StoredJob& job);

// `StoredImage::id` is not stored here.
std::string SerializeImage(const StoredImage& image);
absl::StatusOr<StoredImage> ParseStoredImage(absl::string_view bytes);

}  // namespace tessera::server
