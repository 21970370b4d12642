// What a group of workers does, told to a trace: its states, its processes, the commands that its ranks carry out
// together, and the stages of the images in it. Used by the group's thread. Without a trace, nothing.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "control/commands.h"
#include "server/trace/trace_file.h"

namespace tessera::server {

class GroupTrace {
 public:
  // `trace` outlives it; null: nothing is traced.
  GroupTrace(TraceFile* trace, const std::string& name, int ranks);
  ~GroupTrace();  // ends what has not ended

  GroupTrace(const GroupTrace&) = delete;
  GroupTrace& operator=(const GroupTrace&) = delete;

  // From now on, until the next one.
  void OnState(const std::string& state);
  // The processes that there are from now on, by rank; none: they have ended, with all that was in them.
  void OnWorkers(std::vector<pid_t> pids);

  absl::Time Now() const { return trace_ == nullptr ? absl::InfinitePast() : trace_->Now(); }

  // The image's prompt was encoded by a command that was sent then; when the workers began with it.
  absl::Time OnEncoded(uint64_t task, const TracedImage& image, absl::Time sent, const control::JobStarted& started);
  // These tasks are in the workers, and no step of theirs is made for now.
  void OnSuspended(absl::Span<const uint64_t> tasks);
  // From when it could begin until now.
  static constexpr double kAllTheTime = std::numeric_limits<double>::infinity();

  // A step of these tasks, one after the other as they were sent. It ended then, or just now if that is earlier, and
  // took the workers so many seconds.
  void OnStepped(absl::Span<const uint64_t> tasks, absl::Time sent, absl::Time ended, double seconds);
  // `what` is "decode" or "preview". One after the other, too, but beside steps.
  void OnDecoded(uint64_t task, const std::string& what, absl::Time sent, double seconds);
  // The workers hold nothing of it any more.
  void OnEnded(uint64_t task);

 private:
  struct Task {
    TracedImage image;
    int32_t steps = 0;     // done
    absl::Time stage_end;  // of its last stage
    absl::Time suspended = absl::InfiniteFuture();
  };

  void EndWorkers();
  void EndSuspension(Task& task, absl::Time end);

  TraceFile* const trace_;
  const std::string name_;
  int64_t process_ = 0;
  std::string state_;
  absl::Time state_since_;
  std::vector<pid_t> workers_;
  absl::Time workers_since_;
  absl::Time step_end_ = absl::InfinitePast();
  absl::Time decode_end_ = absl::InfinitePast();
  std::map<uint64_t, Task> tasks_;
};

}  // namespace tessera::server
