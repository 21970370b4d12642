// The service behind every edge: what HTTP and gRPC call, and what stands over the job store, the scheduler and the
// worker groups (or, for tests of the edges, over nothing: fake_image_service.h).
//
// Thread-safe. Calls may wait for the disk, never for a device: who must not block calls from a thread of its own.
// Requests arrive validated (submission.h); a job, image or watch of another tenant is NOT_FOUND, exactly as one
// that never was. Messages of all errors are shown to callers.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/byte_source.h"
#include "control/device_memory.h"
#include "control/model_description.h"
#include "server/api/job.h"
#include "server/api/node_info.h"
#include "server/api/storage_state.h"

namespace tessera::server {

// A low-rank adapter that requests for a model may name (server/adapters/served_adapters.h).
struct ServedAdapter {
  std::string name;
  std::string digest;  // SHA-256 of its file, 64 hexadecimal digits
  uint64_t bytes = 0;  // of the file
  int64_t step = 0;    // of its training, as the file says; 0: it does not
  absl::Time added = absl::UnixEpoch();

  bool operator==(const ServedAdapter&) const = default;
};

struct ServedModel {
  std::string id;                    // what requests call it
  std::vector<std::string> aliases;  // what they may call it too
  // And by any name of OpenAI's image models that nobody else has, so that their clients need not name another.
  bool answers_to_openai_names = false;
  std::vector<ServedAdapter> adapters;  // by name
  // Never null. Shared, because a list of models is made for each request.
  std::shared_ptr<const control::ModelDescription> description = std::make_shared<const control::ModelDescription>();
  absl::Time added = absl::UnixEpoch();
  bool ready = false;  // some group has it loaded and warm
  // Why it cannot be read at present: then its description is empty, and requests for it get this error. OK of others.
  absl::Status unreadable;
};

enum class GroupState : uint8_t { kStarting, kLoading, kCertifying, kReady, kRefused, kRestarting, kStopped };

inline constexpr std::array<absl::string_view, 7> kGroupStates = {"starting", "loading",    "certifying", "ready",
                                                                  "refused",  "restarting", "stopped"};

constexpr absl::string_view GroupStateName(GroupState state) { return kGroupStates[static_cast<size_t>(state)]; }

struct GroupInfo {
  std::string name;
  std::string model;
  std::string layout;
  std::string dtype;
  std::vector<std::string> devices;
  GroupState state = GroupState::kStarting;
  std::string reason;       // of the state, where it has one
  std::string certificate;  // certified, uncertified, off
  int64_t restarts = 0;
  // Of its ranks' devices, by rank; nothing of a rank whose device has no memory of its own or does not tell.
  std::vector<std::optional<control::DeviceMemory>> device_memories = {};
};

// What waits for the groups of one model, and what they work on.
struct ModelQueue {
  std::string model;
  int64_t queued_jobs = 0;
  int64_t running_jobs = 0;
  double device_seconds = 0;  // predicted, of both
  absl::Duration oldest_wait;
};

struct ServerInfo {
  std::string version;
  absl::Time started = absl::InfinitePast();
  // Of all models.
  int64_t queued_jobs = 0;
  int64_t running_jobs = 0;
  double queued_device_seconds = 0;
  absl::Duration oldest_wait;
  std::vector<ModelQueue> queues;
  int64_t images_done = 0, images_failed = 0;  // that have ended since the start
  bool draining = false;
  StorageState storage = StorageState::kOk;
  int64_t unstored_images = 0;  // that have left their workers and wait for it; they count as running
  int64_t result_bytes = 0;     // of the images that are kept
  std::vector<GroupInfo> groups;
  std::vector<NodeInfo> nodes;  // that have ever joined, by name
};

struct Submitted {
  Job job;
  bool existed = false;  // an earlier submission under the same idempotency key
};

struct JobPage {
  std::vector<Job> jobs;  // newest first
  std::string next;       // for the page after this one; empty: this is the last
};

struct ListOptions {
  int32_t limit = 20;  // 1 … kMaxListLimit
  std::string after;   // `next` of the page before; one that is not known is NOT_FOUND
  std::optional<JobState> state;
};

inline constexpr int32_t kMaxListLimit = 100;

// The file of a finished image, to be read piece by piece. It must not outlive the service.
struct ImageFile {
  ImageFormat format = ImageFormat::kPng;
  base::SharedBytes bytes;  // never null
};

// Ends the delivery of events when it is destroyed. The destructor waits for a call that is under way, unless it runs
// inside that call.
class JobWatch {
 public:
  virtual ~JobWatch() = default;
};

class ImageService {
 public:
  // Called for one event at a time, in order, on any thread; also before Watch has returned. Must not block and must
  // not call the service.
  using Listener = std::function<void(const JobEvent&)>;

  virtual ~ImageService() = default;

  // Returns once the job is durable. RESOURCE_EXHAUSTED with RetryAfter (service_error.h) where a queue, a key's limits
  // or predicted memory has no room; UNAVAILABLE while draining or without a group that could ever run it. What was
  // accepted under the idempotency key before is refused for none of these.
  virtual absl::StatusOr<Submitted> Submit(const Caller& caller, const JobRequest& request,
                                           const std::optional<IdempotencyKey>& idempotency) = 0;

  // What was accepted under the key before; ALREADY_EXISTS if that was another request.
  virtual absl::StatusOr<std::optional<Submitted>> FindSubmission(const Caller& caller,
                                                                  const IdempotencyKey& idempotency) = 0;

  // Counts a submission that was refused before it came to Submit, which counts those it refuses itself: by the code of
  // the error (service_error.h) where that is RESOURCE_EXHAUSTED or UNAVAILABLE. A request that is wrong is no rejected
  // job.
  virtual void CountRejection(const absl::Status& refused) = 0;

  virtual absl::StatusOr<Job> Get(const Caller& caller, absl::string_view job) = 0;
  virtual absl::StatusOr<JobPage> List(const Caller& caller, const ListOptions& options) = 0;

  // The job as it stands afterwards. One that has ended stays as it is; one that runs ends within two steps and may
  // still say running.
  virtual absl::StatusOr<Job> Cancel(const Caller& caller, absl::string_view job) = 0;

  // What has happened so far is told first, previews and steps left out: the queue position or the start, then every
  // finished image, then the end if it has ended. EndedEvent or ReleasedEvent is the last event.
  virtual absl::StatusOr<std::unique_ptr<JobWatch>> Watch(const Caller& caller, absl::string_view job,
                                                          WatchedEvents events, Listener listener) = 0;

  // The file of a finished image, found whole and as it was written. Its job may be forgotten while it is read: what
  // can no longer be read as it was is an error of the read.
  virtual absl::StatusOr<ImageFile> OpenImage(const Caller& caller, absl::string_view image) = 0;

  // In the order of the configuration; the first is the one for requests that name none.
  virtual std::vector<ServedModel> ListModels() = 0;
  virtual ServerInfo Info() = 0;

  // Loads the adapter of this name from the folder that the operator named, or what its file is by now: requests from
  // now on get that, what was accepted before gets what it was accepted with. Errors as ServedAdapters::Load; after one
  // nothing has changed.
  struct LoadedAdapter {
    std::string model;
    ServedAdapter adapter;
  };
  virtual absl::StatusOr<LoadedAdapter> LoadAdapter(const std::string& name) { return NoAdapters(); }
  // No later request can name it. NOT_FOUND with the nearest that is loaded.
  virtual absl::Status UnloadAdapter(const std::string& name) { return NoAdapters(); }

  // OK, or UNAVAILABLE with the reason: what /readyz and the gRPC health service say. Never waits for a device.
  virtual absl::Status Ready() = 0;

  // One real, tiny step on every rank of every group; OK, UNAVAILABLE with what failed first, or DEADLINE_EXCEEDED
  // after a minute.
  virtual absl::Status Probe() = 0;

  // The service's own metrics in Prometheus' text format, complete families; the edges add theirs behind.
  virtual std::string MetricsText() = 0;

 private:
  static absl::Status NoAdapters() {
    return absl::FailedPreconditionError(
        "this server has no adapter folder; let adapter_folder of its configuration name one");
  }
};

}  // namespace tessera::server
