// ImageClient calls a Tessera server over HTTP from C++ programs. It offers the calls of tessera.v1.ImageService,
// reconnects after a lost connection, retries a submission without creating a second job, waits as long as a full
// server asks, and can be cancelled.
//
// Messages are the generated ones; tessera/v1/image_service.proto defines the meaning and the valid values of each
// field. Times in them are milliseconds (of whole seconds, because HTTP reports seconds), sizes are pixels, and queue
// positions count from 0, which is next.
//
// Errors of the server keep its code and its message, which is UTF-8 but otherwise as the server sent it; RefusalOf
// returns further details. In addition: UNAVAILABLE if the server cannot be reached or its response was incomplete;
// DEADLINE_EXCEEDED and CANCELLED as requested in CallOptions; INTERNAL if the other end is not a Tessera server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tessera/v1/image_service.pb.h"

namespace tessera {

struct ImageClientOptions {
  // HOST:PORT of the server's HTTP listener or of the proxy in front of it.
  std::string address = "localhost:8080";
  // The secret API key; empty: none. Without TLS it is sent only to this machine, unless key_in_clear permits sending
  // it unencrypted.
  std::string api_key;
  bool key_in_clear = false;
  bool tls = false;
  std::string root_certificates;  // PEM text of the certificate authorities to trust; empty: those of the system
  // How many times in a row a failed call is retried, with pauses that grow from 0.1 s to 5 s. The default retries for
  // 10 s or more.
  int retries = 8;
  // Whether a call is also retried if the server cannot be reached at first or has no capacity. Otherwise such a call
  // fails at once, and only requests lost on the way are retried.
  bool retry_refusals = true;
};

struct CallOptions {
  // The timeout of the whole call including retries. Absent: one minute; for Generate and Watch, none.
  std::optional<absl::Duration> timeout;
  // Cancels the call, from any thread.
  std::stop_token stop;
  // For Generate and Submit: 1 to 255 printable ASCII characters. Submitting the same request under the same key
  // returns the same job. Empty: a key that is unique to this call, so that a submission whose response is lost does
  // not create a second job.
  std::string idempotency_key;
};

// Details of a refusal beyond its code and message.
struct Refusal {
  std::string field;                          // field of ImageRequest; empty: none
  std::string code;                           // a stable code, such as "queue_full"; empty: none
  std::optional<absl::Duration> retry_after;  // how long to wait before the same call may succeed
};
Refusal RefusalOf(const absl::Status& status);

// Thread-safe. Each call uses a separate connection. Host names are resolved by the system's resolver, whose timeouts
// apply.
class ImageClient {
 public:
  // INVALID_ARGUMENT for invalid options. Does not connect yet.
  static absl::StatusOr<std::unique_ptr<ImageClient>> Create(const ImageClientOptions& options);

  virtual ~ImageClient() = default;

  // Called on the thread of the call, one event at a time; must not throw. Steps and previews that a slow caller has
  // missed are left out; no other event is. Each image is reported once. After a lost connection, `queued` and
  // `started` may be repeated, and steps may begin again if the server had to restart the job.
  using OnEvent = std::function<void(const v1::JobEvent&)>;

  // Generates images and returns the job when it is done. Events: accepted, queued, started, steps, previews, images
  // (with their bytes), ended. A failed job is returned as an error with its reason. A call that ends early also
  // cancels its job, unless the caller gave an idempotency key with which it can resume.
  virtual absl::StatusOr<v1::Job> Generate(const v1::ImageRequest& request, const OnEvent& on_event,
                                           const CallOptions& options = {}) = 0;

  // Submits a job, which is durable once this returns.
  virtual absl::StatusOr<v1::Job> Submit(const v1::ImageRequest& request, const CallOptions& options = {}) = 0;

  virtual absl::StatusOr<v1::Job> Get(const std::string& job, const CallOptions& options = {}) = 0;

  // Reports the past and future events of a job until it ends, and returns the job as it ended, possibly failed or
  // cancelled. Images are reported without bytes.
  virtual absl::StatusOr<v1::Job> Watch(const std::string& job, const OnEvent& on_event,
                                        const CallOptions& options = {}) = 0;

  // Cancels a job and returns its state after the call; a running job ends within two steps.
  virtual absl::StatusOr<v1::Job> Cancel(const std::string& job, const CallOptions& options = {}) = 0;

  virtual absl::StatusOr<v1::ListJobsResponse> List(const v1::ListJobsRequest& request,
                                                    const CallOptions& options = {}) = 0;

  // Returns the file of one image of a job.
  virtual absl::StatusOr<v1::GetImageResponse> GetImage(const std::string& image, const CallOptions& options = {}) = 0;

  // Stores a picture (a PNG, JPEG or WebP file of up to 50 MB) on the server, and returns the id for
  // PictureSource.file_id, which only the same API key can use, for 24 hours. A picture of many requests is sent once
  // so.
  virtual absl::StatusOr<std::string> UploadPicture(const std::string& file, const CallOptions& options = {}) = 0;

  virtual absl::StatusOr<v1::ListModelsResponse> ListModels(const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& options = {}) = 0;
};

}  // namespace tessera
