#include "server/trace/group_trace.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tessera::server {
namespace {

// Lanes of a group. Each kind of command has a separate lane, because the reported times of steps that were sent ahead
// may overlap with the encoding of the next image.
enum Lane : int64_t { kStates, kEncoding, kSteps, kDecoding, kFirstRank };

}  // namespace

GroupTrace::GroupTrace(TraceFile* trace, const std::string& name, int ranks) : trace_(trace), name_(name) {
  if (trace_ == nullptr) return;
  process_ = trace_->AddProcess(absl::StrCat("group ", name));
  trace_->NameThread({process_, kStates}, "state");
  trace_->NameThread({process_, kEncoding}, "encode");
  trace_->NameThread({process_, kSteps}, "steps");
  trace_->NameThread({process_, kDecoding}, "decode");
  for (int rank = 0; rank < ranks; ++rank) {
    trace_->NameThread({process_, kFirstRank + rank}, absl::StrCat("rank ", rank));
  }
}

GroupTrace::~GroupTrace() {
  if (trace_ == nullptr) return;
  OnState("");
  EndWorkers();
}

void GroupTrace::OnState(const std::string& state) {
  if (trace_ == nullptr || state == state_) return;
  const absl::Time now = trace_->Now();
  if (!state_.empty()) trace_->Span({process_, kStates}, {.name = state_, .start = state_since_, .end = now});
  state_ = state;
  state_since_ = now;
}

void GroupTrace::EndWorkers() {
  const absl::Time now = trace_->Now();
  for (size_t rank = 0; rank < workers_.size(); ++rank) {
    trace_->Span({process_, kFirstRank + static_cast<int64_t>(rank)},
                 {.name = "worker",
                  .start = workers_since_,
                  .end = now,
                  .args = {{"pid", static_cast<int64_t>(workers_[rank])}}});
  }
  workers_.clear();
}

void GroupTrace::OnWorkers(std::vector<pid_t> pids) {
  if (trace_ == nullptr) return;
  EndWorkers();
  tasks_.clear();
  workers_ = std::move(pids);
  workers_since_ = trace_->Now();
}

absl::Time GroupTrace::OnEncoded(uint64_t task, const TracedImage& image, absl::Time sent,
                                 const control::JobStarted& started) {
  if (trace_ == nullptr) return absl::InfiniteFuture();
  const absl::Time now = trace_->Now();
  const TraceSpan span = {.name = "encode",
                          .start = std::max(sent, now - absl::Seconds(started.seconds)),
                          .end = now,
                          .args = {{"group", name_}, {"tokens", started.prompt_tokens}, {"cached", started.cached}}};
  tasks_[task] = {.image = image, .stage_end = now};
  trace_->Stage(image, span);
  trace_->Span({process_, kEncoding}, span);
  return span.start;
}

void GroupTrace::OnSuspended(absl::Span<const uint64_t> tasks) {
  if (trace_ == nullptr) return;
  const absl::Time now = trace_->Now();
  for (const uint64_t id : tasks) {
    const auto task = tasks_.find(id);
    if (task != tasks_.end() && task->second.suspended == absl::InfiniteFuture()) task->second.suspended = now;
  }
}

void GroupTrace::EndSuspension(Task& task, absl::Time end) {
  const absl::Time start = std::max(std::exchange(task.suspended, absl::InfiniteFuture()), task.stage_end);
  if (start < end)
    trace_->Stage(task.image, {.name = "suspended", .start = start, .end = end, .args = {{"group", name_}}});
}

void GroupTrace::OnStepped(absl::Span<const uint64_t> tasks, absl::Time sent, absl::Time ended, double seconds) {
  if (trace_ == nullptr) return;
  const absl::Time end = std::min(ended, trace_->Now());
  TraceSpan span = {.name = "step", .start = std::max({sent, step_end_, end - absl::Seconds(seconds)}), .end = end};
  span.end = step_end_ = std::max(span.start, span.end);
  span.args = {{"group", name_}, {"batch", tasks.size()}};
  trace_->Span({process_, kSteps}, span);
  for (const uint64_t id : tasks) {
    const auto found = tasks_.find(id);
    if (found == tasks_.end()) continue;
    Task& task = found->second;
    // A step that was sent before the task was suspended may be reported afterwards.
    if (task.suspended <= sent) EndSuspension(task, span.start);
    TraceSpan own = span;
    own.args["step"] = ++task.steps;
    trace_->Stage(task.image, own);
    task.stage_end = span.end;
  }
}

void GroupTrace::OnDecoded(uint64_t id, const std::string& what, absl::Time sent, double seconds) {
  const auto task = tasks_.find(id);
  if (trace_ == nullptr || task == tasks_.end()) return;
  const absl::Time end = trace_->Now();
  const absl::Time start = std::max({sent, task->second.stage_end, decode_end_, end - absl::Seconds(seconds)});
  const TraceSpan span = {.name = what, .start = start, .end = end, .args = {{"group", name_}}};
  trace_->Span({process_, kDecoding}, span);
  trace_->Stage(task->second.image, span);
  task->second.stage_end = decode_end_ = span.end;
}

void GroupTrace::OnEnded(uint64_t id) {
  const auto task = tasks_.find(id);
  if (task == tasks_.end()) return;
  EndSuspension(task->second, trace_->Now());
  tasks_.erase(task);
}

}  // namespace tessera::server
