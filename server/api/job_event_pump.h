// JobEventPump delivers one job's events to a sink that may be slow: on a task pool, one at a time and in order. A slow
// sink misses steps and queue positions that later ones have superseded, but never an image or the end. Of the waiting
// previews, only the newest of each image is kept.
//
// Thread-safe. Ends after the last event.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "base/threads/task_pool.h"
#include "server/api/caller.h"
#include "server/api/image_service.h"
#include "server/api/job.h"

namespace tessera::server {

// A client for which more bytes than this are waiting gets no further previews until it has read some.
inline constexpr uint64_t kEnoughPending = 1 << 20;

class JobEventPump : public std::enable_shared_from_this<JobEventPump> {
 public:
  using Sink = std::function<void(const JobEvent&)>;

  // The service and the pool must outlive the pump; the pool must end before the service.
  static absl::StatusOr<std::shared_ptr<JobEventPump>> Start(ImageService& service, base::TaskPool& pool,
                                                             const Caller& caller, const std::string& job,
                                                             WatchedEvents events, Sink sink);

  // After it returns, no call of the sink begins. The sink is destroyed on the pool.
  void Stop();

 private:
  explicit JobEventPump(base::TaskPool& pool, Sink sink);

  void Add(const JobEvent& event);
  void Deliver();

  base::TaskPool& pool_;
  std::mutex mutex_;
  std::shared_ptr<Sink> sink_;  // null after Stop
  std::unique_ptr<JobWatch> watch_;
  std::deque<JobEvent> waiting_;
  bool delivering_ = false;
};

}  // namespace tessera::server
