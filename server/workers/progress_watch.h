// Watches the ranks of a group on a thread of its own: that their processes live, and that somebody gets on while an
// answer is due.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "parallel/segment/segment.h"
#include "server/workers/rank_process.h"

namespace tessera::server {

// How long the ranks of a group may show no progress while an answer is due. Every operator of the tensor library is
// progress, so these bound single operators and reads of single tensors, not whole commands.
struct ProgressBounds {
  absl::Duration loading = absl::Minutes(10);
  absl::Duration other = absl::Minutes(5);  // encoding, decoding, and the first step of a job
  // Later steps: this, or ten times the longest pause seen in the steps so far if that is more.
  absl::Duration step = absl::Seconds(10);
};

class ProgressWatch final {
 public:
  struct Rank {
    std::string name;
    RankProcess* process;
  };
  struct Events {
    std::function<void(int rank)> ended;                   // of its process; may be called again
    std::function<void(const std::string& reason)> hangs;  // while an answer was due; may be called again
  };

  // All that is passed outlives it.
  ProgressWatch(std::vector<Rank> ranks, const parallel::HostSegment& segment, absl::Duration step_bound,
                Events events);
  ~ProgressWatch();

  // As long as it lives an answer is due, and no pause may be longer than the bound. One at a time.
  class Due {
   public:
    Due(ProgressWatch& watch, absl::Duration bound) : bound_(watch.bound_nanoseconds_) {
      bound_ = absl::ToInt64Nanoseconds(bound);
    }
    ~Due() { bound_ = 0; }
    Due(const Due&) = delete;

   private:
    std::atomic<int64_t>& bound_;
  };

 private:
  void Watch();
  void CheckProgress(absl::Duration now);
  std::string Culprit() const;

  const std::vector<Rank> ranks_;
  const parallel::HostSegment& segment_;
  const absl::Duration step_bound_;
  const Events events_;
  std::atomic<bool> ending_ = false;
  std::atomic<int64_t> bound_nanoseconds_ = 0;  // 0: no answer is due
  // Used by the thread alone.
  absl::Duration progress_at_;
  absl::Duration longest_pause_;  // in steps
  std::vector<uint64_t> beats_;   // of each rank
  int64_t last_bound_ = 0;
  absl::Duration stopped_since_;
  std::thread thread_;
};

}  // namespace tessera::server
