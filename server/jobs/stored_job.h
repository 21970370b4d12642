// Jobs and images as bytes in the job store (proto/tessera/internal/stored_job.proto).
//
// Bytes from the disk are checked like bytes from outside: whatever they are, the result is a job within the limits of
// a validated one, or an error. They may have been written by an older or a newer program.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/jobs/job_record.h"

namespace tessera::server {

struct StoredJob {
  std::string tenant;
  JobRequest request;
  std::string trace_parent;
  std::string idempotency_key_hash;  // empty: none
};

// INVALID_ARGUMENT where parsing would refuse what was written.
absl::StatusOr<std::string> SerializeJob(const StoredJob& job);

// DATA_LOSS for damaged bytes, FAILED_PRECONDITION for those that a newer program wrote and that must not be
// misunderstood; the messages are fit for the user whose job it is.
absl::StatusOr<StoredJob> ParseStoredJob(absl::string_view bytes);
// The same into `job`, all of which is overwritten and whose memory serves again; after an error it is anything.
absl::Status ParseStoredJob(absl::string_view bytes, StoredJob& job);

// `StoredImage::id` is not stored here.
std::string SerializeImage(const StoredImage& image);
absl::StatusOr<StoredImage> ParseStoredImage(absl::string_view bytes);

}  // namespace tessera::server
