// Watches the ranks of a group on a thread: checks that their processes are alive and that at least one of them makes
// progress while a reply is pending.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/time/watched_time.h"
#include "parallel/segment/segment.h"
#include "server/workers/progress_judge.h"
#include "server/workers/rank_process.h"

namespace tessera::server {

// How long the ranks of a group may show no progress while a reply is pending. Every operator of the tensor library is
// progress, so these values bound single operators and reads of single tensors, not whole commands. An operator that
// takes longer shows its processor time, which counts as progress within the limits of progress_judge.h.
struct ProgressBounds {
  absl::Duration loading = absl::Minutes(10);
  absl::Duration other = absl::Minutes(5);  // encoding, decoding, and the first step of a job
  // Later steps: this value, or ten times the longest pause in all steps so far if that is more.
  absl::Duration step = absl::Seconds(10);
};

class ProgressWatch final {
 public:
  struct Rank {
    std::string name;
    RankProcess* process;
  };
  struct Events {
    std::function<void(int rank)> ended;                   // the process ended; may be called again
    std::function<void(const std::string& reason)> hangs;  // while a reply is pending; may be called again
  };

  // All arguments outlive the watch.
  ProgressWatch(std::vector<Rank> ranks, const parallel::HostSegment& segment, Events events);
  ~ProgressWatch();

  // While it exists, a reply is pending and no pause may exceed the bound. At most one may exist.
  class Due {
   public:
    Due(ProgressWatch& watch, const PauseBound& bound) : watch_(watch) { watch_.SetBound(bound); }
    ~Due() { watch_.SetBound(std::nullopt); }
    Due(const Due&) = delete;

   private:
    ProgressWatch& watch_;
  };

 private:
  void Watch();
  void CheckProgress(absl::Duration now);
  void SetBound(const std::optional<PauseBound>& bound);
  std::string Culprit() const;

  const std::vector<Rank> ranks_;
  const parallel::HostSegment& segment_;
  const Events events_;
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  std::optional<PauseBound> bound_;  // none: no reply is pending; guarded by mutex_
  // Used only by the thread.
  base::WatchedTime time_;
  ProgressJudge judge_;
  std::vector<RankProgress> progress_;  // of each rank
  absl::Duration stopped_since_;
  std::thread thread_;
};

}  // namespace tessera::server
