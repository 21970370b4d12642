// The events of one job, brought from whoever tells them to a sink that may take its time: on a task pool, one at a
// time and in order. A slow sink misses steps and queue positions that later ones have superseded, never an image or
// the end, and of the previews that wait only the newest of each image is kept.
//
// Thread-safe. Ends by itself after the last event.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"
#include "base/task_pool.h"
#include "server/api/image_service.h"

namespace tessera::server {

// Of bytes that wait for a client: with more it gets no further previews until it has taken some.
inline constexpr uint64_t kEnoughPending = 1 << 20;

class JobEventPump : public std::enable_shared_from_this<JobEventPump> {
 public:
  using Sink = std::function<void(const JobEvent&)>;

  // Service and pool must outlive the pump; the pool must end before the service.
  static absl::StatusOr<std::shared_ptr<JobEventPump>> Start(ImageService& service, base::TaskPool& pool,
                                                             const Caller& caller, const std::string& job,
                                                             WatchedEvents events, Sink sink);

  // No call of the sink begins after this. What the sink holds is released on the pool.
  void Stop();

 private:
  explicit JobEventPump(base::TaskPool& pool, Sink sink);

  void Add(const JobEvent& event);
  void Deliver();

  base::TaskPool& pool_;
  std::mutex mutex_;
  std::shared_ptr<Sink> sink_;  // null: stopped
  std::unique_ptr<JobWatch> watch_;
  std::deque<JobEvent> waiting_;
  bool delivering_ = false;
};

}  // namespace tessera::server
