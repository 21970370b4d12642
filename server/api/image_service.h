// ImageService is the interface that HTTP and gRPC call. It is implemented with the job store, the scheduler and the
// worker groups; tests of HTTP and gRPC replace single calls of it (tests/support/test_image_service.h).
//
// Thread-safe. Calls may wait for the disk but never for a device; a caller that must not block calls from another
// thread. Requests arrive validated (submission.h). A job, image or watch of another tenant is NOT_FOUND, exactly like
// one that never existed. All error messages are shown to callers.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/files/byte_source.h"
#include "server/api/job_event.h"
#include "server/api/key_usage.h"
#include "server/api/served_model.h"
#include "server/image/image_format.h"

namespace tessera::control {
struct PictureUse;
}

namespace tessera::server {

struct Caller;
struct IdempotencyKey;
struct Job;
struct JobPage;
struct JobRequest;
struct ListOptions;
struct ServerInfo;
struct StoredPicture;
struct Submitted;
struct UploadedFile;

// The file of a finished image, which can be read in pieces. It must not outlive the service.
struct ImageFile {
  ImageFormat format = ImageFormat::kPng;
  base::SharedBytes bytes;  // never null
};

// Its destructor ends the delivery of events. It waits for a running listener call, unless it runs inside that call.
class JobWatch {
 public:
  virtual ~JobWatch() = default;
};

class ImageService {
 public:
  // Called for one event at a time, in order, on any thread, possibly before Watch has returned. Must not block and
  // must not call the service.
  using Listener = std::function<void(const JobEvent&)>;

  virtual ~ImageService() = default;

  // Returns once the job is durable. RESOURCE_EXHAUSTED with RetryAfter (service_error.h) if a queue, a key's limit or
  // predicted memory is exceeded; UNAVAILABLE while draining or if no group could ever run the job. A repeated
  // submission under an accepted idempotency key is never refused for these reasons.
  virtual absl::StatusOr<Submitted> Submit(const Caller& caller, const JobRequest& request,
                                           const std::optional<IdempotencyKey>& idempotency) = 0;

  // Returns the submission accepted earlier under the key; ALREADY_EXISTS if it was a different request.
  virtual absl::StatusOr<std::optional<Submitted>> FindSubmission(const Caller& caller,
                                                                  const IdempotencyKey& idempotency) = 0;

  // Counts a submission that was refused before it reached Submit, which counts its refusals itself. Counted by error
  // code (service_error.h) if the status is RESOURCE_EXHAUSTED or UNAVAILABLE; an invalid request is not a rejected
  // job.
  virtual void CountRejection(const absl::Status& refused) = 0;

  virtual absl::StatusOr<Job> Get(const Caller& caller, absl::string_view job) = 0;
  virtual absl::StatusOr<JobPage> List(const Caller& caller, const ListOptions& options) = 0;

  // Returns the job after the call. A job that has ended does not change; a running job ends within two steps and may
  // still be reported as running.
  virtual absl::StatusOr<Job> Cancel(const Caller& caller, absl::string_view job) = 0;

  // First reports the current state, without previews and steps: the queue position or the start, then every finished
  // image, then the end if the job has ended. EndedEvent or ReleasedEvent is the last event.
  virtual absl::StatusOr<std::unique_ptr<JobWatch>> Watch(const Caller& caller, absl::string_view job,
                                                          WatchedEvents events, Listener listener) = 0;

  // Opens the file of a finished image after verifying that it is complete and unmodified. Its job may be deleted while
  // the file is read; a read that no longer finds the original bytes fails.
  virtual absl::StatusOr<ImageFile> OpenImage(const Caller& caller, absl::string_view image) = 0;

  // Returns what keys have used, by day, key and model. The caller of this method decides whose usage may be asked for.
  // INVALID_ARGUMENT if the answer would have more than kMaxUsageRows rows.
  virtual absl::StatusOr<std::vector<DayUsage>> Usage(const UsageQuery& query) { return std::vector<DayUsage>(); }

  // In the order of the configuration; requests without a model use the first.
  virtual std::vector<ServedModel> ListModels() = 0;
  virtual ServerInfo Info() = 0;

  // Loads the adapter of this name from the adapter folder, or the current version of its file. Later requests use this
  // version; jobs accepted earlier keep the version they were accepted with. Errors as in ServedAdapters::Load; after
  // an error nothing has changed.
  virtual absl::StatusOr<LoadedAdapter> LoadAdapter(const std::string& name) { return NoAdapters(); }
  // Later requests can no longer name it. NOT_FOUND with the nearest name of a loaded adapter.
  virtual absl::Status UnloadAdapter(const std::string& name) { return NoAdapters(); }

  // Decodes a picture and stores it under the caller's key; a job that names it keeps it (server/api/stored_picture.h).
  // INVALID_ARGUMENT: it is no picture, damaged or too large. RESOURCE_EXHAUSTED: the key stores too much, or the disk
  // is full. UNIMPLEMENTED: this system cannot confine the decoder. UNAVAILABLE. Messages continue after a field's
  // name.
  virtual absl::StatusOr<StoredPicture> PutPicture(const Caller& caller, absl::string_view file);
  // Returns the stored file of a picture of this key, a PNG. NOT_FOUND.
  virtual absl::StatusOr<std::string> ReadPicture(const Caller& caller, const control::PictureUse& picture);
  // Stores a picture as PutPicture does, under a random handle that only this key can use until it expires.
  virtual absl::StatusOr<UploadedFile> PutFile(const Caller& caller, absl::string_view file);
  // NOT_FOUND, also for a handle of another key.
  virtual absl::StatusOr<UploadedFile> FindFile(const Caller& caller, absl::string_view id);
  virtual absl::StatusOr<std::vector<UploadedFile>> ListFiles(const Caller& caller);
  virtual absl::Status DeleteFile(const Caller& caller, absl::string_view id);

  // OK, or UNAVAILABLE with the reason, as reported by /readyz and the gRPC health service. Never waits for a device.
  virtual absl::Status Ready() = 0;

  // Runs one tiny real step on every rank of every group. UNAVAILABLE with the first failure, or DEADLINE_EXCEEDED
  // after a minute.
  virtual absl::Status Probe() = 0;

  // The service's metrics in Prometheus' text format, as complete families; HTTP and gRPC append theirs.
  virtual std::string MetricsText() = 0;

 private:
  static absl::Status NoAdapters() {
    return absl::FailedPreconditionError("this server has no adapter folder; set adapter_folder in its configuration");
  }
};

}  // namespace tessera::server
