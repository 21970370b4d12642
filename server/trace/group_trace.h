// GroupTrace writes the activity of a worker group to a trace: its states, its processes, the commands that its ranks
// execute together, and the stages of its images. It exports these stages as spans, with all steps of an image as one.
// Used by the group's thread. Does nothing without a trace and without spans.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "control/protocol/job_replies.h"
#include "server/trace/image_spans.h"
#include "server/trace/trace_file.h"

namespace tessera::server {

class GroupTrace {
 public:
  // `trace` and `spans` outlive the object and may be null.
  GroupTrace(TraceFile* trace, const std::string& name, int ranks, const ImageSpans* spans = nullptr);
  ~GroupTrace();  // ends open spans

  GroupTrace(const GroupTrace&) = delete;
  GroupTrace& operator=(const GroupTrace&) = delete;

  // Begins a state, which lasts until the next call.
  void OnState(const std::string& state);
  // Sets the current processes by rank; empty: they have ended with all their images.
  void OnWorkers(std::vector<pid_t> pids);

  absl::Time Now() const {
    if (trace_ != nullptr) return trace_->Now();
    return spans_ == nullptr ? absl::InfinitePast() : spans_->Now();
  }

  // The image's prompt was encoded by a command sent at `sent`. Returns when the workers began with it.
  absl::Time OnEncoded(uint64_t task, const TracedImage& image, absl::Time sent, const control::JobStarted& started);
  // These tasks are in the workers but make no steps for now.
  void OnSuspended(absl::Span<const uint64_t> tasks);
  // A duration that means: from the earliest possible begin until now.
  static constexpr double kAllTheTime = std::numeric_limits<double>::infinity();

  // These tasks made a step. Steps are reported in the order in which they were sent. It ended at `ended`, or now if
  // that is earlier, and took `seconds` in the workers.
  void OnStepped(absl::Span<const uint64_t> tasks, absl::Time sent, absl::Time ended, double seconds);
  // `what` is "decode" or "preview". Decodings are reported in order too, but may overlap with steps.
  void OnDecoded(uint64_t task, const std::string& what, absl::Time sent, double seconds);
  // The workers no longer hold anything of the task.
  void OnEnded(uint64_t task);

 private:
  struct Task {
    TracedImage image;
    int32_t steps = 0;                               // steps done
    absl::Time stage_end;                            // end of its last stage
    absl::Time first_step = absl::InfiniteFuture();  // start of the steps that were not exported yet
    absl::Time last_step;                            // end of these steps
    size_t largest_batch = 0;
    absl::Time suspended = absl::InfiniteFuture();
  };

  bool IsOff() const { return trace_ == nullptr && spans_ == nullptr; }
  void EndWorkers();
  void EndSuspension(Task& task, absl::Time end);
  void AddStage(const TracedImage& image, const TraceSpan& span) const;
  void ExportStage(const TracedImage& image, ImageStageSpan stage) const;
  // Exports the steps that the image has made.
  void EndSteps(Task& task) const;

  TraceFile* const trace_;
  const ImageSpans* const spans_;
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
