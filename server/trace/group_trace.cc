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

GroupTrace::GroupTrace(TraceFile* trace, const std::string& name, int ranks, const ImageSpans* spans)
    : trace_(trace), spans_(spans), name_(name) {
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
  if (IsOff()) return;
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
  for (auto& [id, task] : tasks_) EndSteps(task);
  tasks_.clear();
  if (trace_ == nullptr) return;
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

void GroupTrace::AddStage(const TracedImage& image, const TraceSpan& span) const {
  if (trace_ != nullptr) trace_->Stage(image, span);
}

void GroupTrace::ExportStage(const TracedImage& image, ImageStageSpan stage) const {
  if (spans_ == nullptr) return;
  stage.attributes.push_back({"tessera.group", name_});
  spans_->AddStage(image, std::move(stage));
}

void GroupTrace::EndSteps(Task& task) const {
  const absl::Time start = std::exchange(task.first_step, absl::InfiniteFuture());
  if (start == absl::InfiniteFuture()) return;
  ExportStage(task.image, {.name = "denoise",
                           .start = start,
                           .end = task.last_step,
                           .attributes = {{"tessera.steps", int64_t{task.steps}},
                                          {"tessera.batch.largest", static_cast<int64_t>(task.largest_batch)}}});
}

void GroupTrace::OnWorkers(std::vector<pid_t> pids) {
  if (IsOff()) return;
  EndWorkers();
  workers_ = std::move(pids);
  workers_since_ = Now();
}

absl::Time GroupTrace::OnEncoded(uint64_t task, const TracedImage& image, absl::Time sent,
                                 const control::JobStarted& started) {
  if (IsOff()) return absl::InfiniteFuture();
  const absl::Time now = Now();
  const TraceSpan span = {.name = "encode",
                          .start = std::max(sent, now - absl::Seconds(started.seconds)),
                          .end = now,
                          .args = {{"group", name_}, {"tokens", started.prompt_tokens}, {"cached", started.cached}}};
  tasks_[task] = {.image = image, .stage_end = now};
  AddStage(image, span);
  if (trace_ != nullptr) trace_->Span({process_, kEncoding}, span);
  ExportStage(image, {.name = "encode",
                      .start = span.start,
                      .end = span.end,
                      .attributes = {{"tessera.prompt.tokens", int64_t{started.prompt_tokens}},
                                     {"tessera.prompt.cached", started.cached}}});
  return span.start;
}

void GroupTrace::OnSuspended(absl::Span<const uint64_t> tasks) {
  if (IsOff()) return;
  const absl::Time now = Now();
  for (const uint64_t id : tasks) {
    const auto task = tasks_.find(id);
    if (task != tasks_.end() && task->second.suspended == absl::InfiniteFuture()) task->second.suspended = now;
  }
}

void GroupTrace::EndSuspension(Task& task, absl::Time end) {
  const absl::Time start = std::max(std::exchange(task.suspended, absl::InfiniteFuture()), task.stage_end);
  if (start >= end) return;
  AddStage(task.image, {.name = "suspended", .start = start, .end = end, .args = {{"group", name_}}});
  ExportStage(task.image, {.name = "suspended", .start = start, .end = end});
}

void GroupTrace::OnStepped(absl::Span<const uint64_t> tasks, absl::Time sent, absl::Time ended, double seconds) {
  if (IsOff()) return;
  const absl::Time end = std::min(ended, Now());
  TraceSpan span = {.name = "step", .start = std::max({sent, step_end_, end - absl::Seconds(seconds)}), .end = end};
  span.end = step_end_ = std::max(span.start, span.end);
  span.args = {{"group", name_}, {"batch", tasks.size()}};
  if (trace_ != nullptr) trace_->Span({process_, kSteps}, span);
  for (const uint64_t id : tasks) {
    const auto found = tasks_.find(id);
    if (found == tasks_.end()) continue;
    Task& task = found->second;
    // A step that was sent before the task was suspended may be reported afterwards.
    if (task.suspended <= sent) EndSuspension(task, span.start);
    TraceSpan own = span;
    own.args["step"] = ++task.steps;
    AddStage(task.image, own);
    task.first_step = std::min(task.first_step, span.start);
    task.last_step = task.stage_end = span.end;
    task.largest_batch = std::max(task.largest_batch, tasks.size());
  }
}

void GroupTrace::OnDecoded(uint64_t id, const std::string& what, absl::Time sent, double seconds) {
  const auto task = tasks_.find(id);
  if (task == tasks_.end()) return;
  const absl::Time end = Now();
  const absl::Time start = std::max({sent, task->second.stage_end, decode_end_, end - absl::Seconds(seconds)});
  const TraceSpan span = {.name = what, .start = start, .end = end, .args = {{"group", name_}}};
  if (trace_ != nullptr) trace_->Span({process_, kDecoding}, span);
  AddStage(task->second.image, span);
  if (what == "decode") EndSteps(task->second);
  ExportStage(task->second.image, {.name = what, .start = span.start, .end = span.end});
  task->second.stage_end = decode_end_ = span.end;
}

void GroupTrace::OnEnded(uint64_t id) {
  const auto task = tasks_.find(id);
  if (task == tasks_.end()) return;
  EndSuspension(task->second, Now());
  EndSteps(task->second);
  tasks_.erase(task);
}

}  // namespace tessera::server
