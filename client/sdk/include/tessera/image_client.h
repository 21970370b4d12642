// A Tessera server over HTTP, for C++ programs: the calls of tessera.v1.ImageService, and what a caller needs around
// them: connections that are made again, submissions that are made once, waits that a full server asks for, an end.
//
// Messages are the generated ones; tessera/v1/image_service.proto says of each field what it means and what is valid.
// Times in them are milliseconds (of whole seconds, which is what HTTP tells), sizes are pixels, places in the queue
// count from 0, which is next.
//
// Errors are those of the server, with its message, which is UTF-8 but otherwise as the server sent it; RefusalOf has
// what it says beside that. Beyond those: UNAVAILABLE, the server cannot be reached or did not answer in full;
// DEADLINE_EXCEEDED and CANCELLED, as the caller asked for (CallOptions); INTERNAL, the other end is no Tessera server.
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
  // HOST:PORT of the server's HTTP listener, or of the proxy in front of it.
  std::string address = "localhost:8080";
  // The secret; empty: none. Without TLS it goes to this machine only, unless key_in_clear lets others read it.
  std::string api_key;
  bool key_in_clear = false;
  bool tls = false;
  std::string root_certificates;  // PEM text of who vouches for the server; empty: those the system trusts
  // How often in a row a call is tried again that did not get through, with pauses that grow from 0.1 s to 5 s. The
  // default timeout is 10 s or more.
  int retries = 8;
  // Whether that also holds for a server that cannot be reached at first, or that has no room. Otherwise such a call
  // ends at once, and only what was lost on the way is tried again.
  bool retry_refusals = true;
};

struct CallOptions {
  // For the whole call, with all that is tried again. Absent: one minute; for Generate and Watch, no end.
  std::optional<absl::Duration> timeout;
  // Ends the call, from any thread.
  std::stop_token stop;
  // Of Generate and Submit: 1 to 255 printable ASCII characters. Whoever submits the same request under the same key
  // gets the same job. Empty: one of this call's own, so that a submission whose answer is lost makes no second job.
  std::string idempotency_key;
};

// What a refusal says beyond its code and message.
struct Refusal {
  std::string field;                          // of ImageRequest; empty: none
  std::string code;                           // a stable word, such as "queue_full"; empty: none
  std::optional<absl::Duration> retry_after;  // when the same call has a chance
};
Refusal RefusalOf(const absl::Status& status);

// Thread-safe. Each call has a connection of its own. The system's resolver looks up names, in its own time.
class ImageClient {
 public:
  // INVALID_ARGUMENT for options that are not valid. Connects to nothing yet.
  static absl::StatusOr<std::unique_ptr<ImageClient>> Create(const ImageClientOptions& options);

  virtual ~ImageClient() = default;

  // Called on the thread of the call, one at a time; must not throw. A step or a preview that a slow caller has missed
  // is left out, nothing else. Each image comes once; after a lost connection `queued` and `started` may come again,
  // and steps may begin again where the server had to.
  using OnEvent = std::function<void(const v1::JobEvent&)>;

  // Makes images and returns the job when it is done, with its images' bytes in the events: accepted, queued, started,
  // steps, previews, images, ended. A job that fails is an error with its reason. A call that ends sooner takes its job
  // along unless the caller gave an idempotency key, under which it may come back for it.
  virtual absl::StatusOr<v1::Job> Generate(const v1::ImageRequest& request, const OnEvent& on_event,
                                           const CallOptions& options = {}) = 0;

  // Accepts a job; it is durable once this returns.
  virtual absl::StatusOr<v1::Job> Submit(const v1::ImageRequest& request, const CallOptions& options = {}) = 0;

  virtual absl::StatusOr<v1::Job> Get(const std::string& job, const CallOptions& options = {}) = 0;

  // What has happened to a job and what happens, until it has ended: the job as it ended, which may be failed or
  // cancelled. Images come without bytes.
  virtual absl::StatusOr<v1::Job> Watch(const std::string& job, const OnEvent& on_event,
                                        const CallOptions& options = {}) = 0;

  // The job as it stands afterwards: one that runs ends within two steps.
  virtual absl::StatusOr<v1::Job> Cancel(const std::string& job, const CallOptions& options = {}) = 0;

  virtual absl::StatusOr<v1::ListJobsResponse> List(const v1::ListJobsRequest& request,
                                                    const CallOptions& options = {}) = 0;

  // The file of an image of a job.
  virtual absl::StatusOr<v1::GetImageResponse> GetImage(const std::string& image, const CallOptions& options = {}) = 0;

  virtual absl::StatusOr<v1::ListModelsResponse> ListModels(const CallOptions& options = {}) = 0;
  virtual absl::StatusOr<v1::ServerInfo> GetServerInfo(const CallOptions& options = {}) = 0;
};

}  // namespace tessera
