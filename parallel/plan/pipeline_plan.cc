#include "parallel/plan/pipeline_plan.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"

namespace tessera::parallel {
namespace {

absl::Status CheckPipeline(const Pipeline& pipeline, int stage) {
  const std::vector<int>& bounds = pipeline.bounds;
  if (bounds.size() < 2 || bounds.front() != 0) {
    return absl::InvalidArgumentError("the bounds of the stages must begin at block 0 and name one stage at least");
  }
  for (size_t s = 1; s < bounds.size(); ++s) {
    if (bounds[s] <= bounds[s - 1]) return absl::InvalidArgumentError(absl::StrCat("stage ", s - 1, " has no block"));
  }
  if (pipeline.patches < 1) {
    return absl::InvalidArgumentError(absl::StrCat("patches is ", pipeline.patches, "; valid values are 1 or more"));
  }
  for (const LongSkip& skip : pipeline.skips) {
    if (skip.from < 0 || skip.from >= skip.to || skip.to >= bounds.back()) {
      return absl::InvalidArgumentError(absl::StrCat("a skip leads from block ", skip.from, " to block ", skip.to,
                                                     "; the blocks are 0 to ", bounds.back() - 1));
    }
  }
  if (stage < 0 || stage >= pipeline.stages()) {
    return absl::InvalidArgumentError(
        absl::StrCat("stage is ", stage, "; valid values are 0 to ", pipeline.stages() - 1));
  }
  return absl::OkStatus();
}

}  // namespace

int Pipeline::StageOf(int block) const {
  return static_cast<int>(std::ranges::upper_bound(bounds, block) - bounds.begin()) - 1;
}

struct PipelinePlanner::Message {
  StageOp::Kind send, receive;
  const Pass* pass;
  int from, to;
  const SkipEdge* edge;  // for skips

  // The order within one slot. Stages with even numbers send first, so that half of the stages receive at the same
  // time.
  auto Order() const { return std::tuple(from % 2, from, to, send); }
};

absl::StatusOr<PipelinePlanner> PipelinePlanner::Create(const Pipeline& pipeline, int stage) {
  RETURN_IF_ERROR(CheckPipeline(pipeline, stage));
  return PipelinePlanner(pipeline, stage);
}

PipelinePlanner::PipelinePlanner(const Pipeline& pipeline, int stage)
    : stages_(pipeline.stages()), patches_(pipeline.patches), stage_(stage), ready_(pipeline.patches, 0) {
  std::map<std::pair<int, int>, std::set<int>> edges;
  for (const LongSkip& skip : pipeline.skips) {
    const int from = pipeline.StageOf(skip.from);
    const int to = pipeline.StageOf(skip.to) - (base::Planted("pipe_skip_to_wrong_stage") ? 1 : 0);
    if (from < to) edges[{from, to}].insert(skip.from);
  }
  for (const auto& [stages, blocks] : edges) {
    edges_.push_back({.from = stages.first, .to = stages.second, .blocks = {blocks.begin(), blocks.end()}});
  }
}

void PipelinePlanner::Append(const PipeStep& step, PatchRange patches, bool last) {
  int64_t start = next_start_;
  for (int patch = patches.begin; patch < patches.end; ++patch) start = std::max(start, ready_[patch]);
  passes_.push_back(
      {.job = step.job, .step = step.step, .patches = patches, .start = start, .barrier_after = last && step.barrier});
  next_start_ = start + 1;
  for (int patch = patches.begin; patch < patches.end; ++patch) ready_[patch] = start + stages_;
  if (last && (step.barrier || base::Planted("pipe_step_drains"))) std::ranges::fill(ready_, start + stages_);
}

absl::StatusOr<std::vector<StageOp>> PipelinePlanner::Step(const PipeStep& step) {
  if (!flushed_ && (step.job != job_ || step.step != step_ + 1)) {
    return absl::FailedPreconditionError(absl::StrCat("step ", step.step, " of job ", step.job, " cannot follow step ",
                                                      step_, " of job ", job_, " without a flush"));
  }
  job_ = step.job;
  step_ = step.step;
  flushed_ = false;
  if (step.whole) {
    Append(step, {0, patches_}, true);
  } else {
    for (int patch = 0; patch < patches_; ++patch) Append(step, {patch, patch + 1}, patch + 1 == patches_);
  }
  std::vector<StageOp> ops;
  Emit(std::max(next_start_, ready_[0]), ops);  // every step starts with patch 0
  return ops;
}

std::vector<StageOp> PipelinePlanner::Flush() {
  const int64_t end = *std::ranges::max_element(ready_);
  std::vector<StageOp> ops;
  Emit(end, ops);
  ops.push_back({.kind = StageOp::Kind::kFlush, .job = job_, .step = step_, .patches = {0, patches_}, .slot = end});
  slot_ = end;
  computed_ = false;
  next_start_ = end;
  flushed_ = true;
  return ops;
}

// Emits the slots before `end`, in which no pass that is still unknown can start.
void PipelinePlanner::Emit(int64_t end, std::vector<StageOp>& ops) {
  for (; slot_ < end; ++slot_) {
    if (!computed_) EmitCompute(ops);
    computed_ = false;
    EmitMessages(ops);
    EmitBarrier(ops);
    while (!passes_.empty() && passes_.front().start + stages_ - 1 <= slot_) passes_.pop_front();
  }
  // After the first stage the computation of one more slot is known: its input has been received.
  if (!computed_ && stage_ > 0) {
    EmitCompute(ops);
    computed_ = true;
  }
}

void PipelinePlanner::EmitCompute(std::vector<StageOp>& ops) const {
  for (const Pass& pass : passes_) {
    if (pass.start + stage_ != slot_) continue;
    ops.push_back(
        {.kind = StageOp::Kind::kCompute, .job = pass.job, .step = pass.step, .patches = pass.patches, .slot = slot_});
  }
}

void PipelinePlanner::EmitMessages(std::vector<StageOp>& ops) const {
  using Kind = StageOp::Kind;
  std::vector<Message> messages;
  for (const Pass& pass : passes_) {
    const int64_t at = slot_ - pass.start;  // the stage that has just run it
    if (at < 0 || at >= stages_) continue;
    const int from = static_cast<int>(at);
    if (from + 1 < stages_) {
      messages.push_back({Kind::kSendState, Kind::kReceiveState, &pass, from, from + 1, nullptr});
    } else if (stages_ > 1) {
      messages.push_back({Kind::kSendResult, Kind::kReceiveResult, &pass, from, 0, nullptr});
    }
    for (const SkipEdge& edge : edges_) {
      if (edge.from == from) messages.push_back({Kind::kSendSkips, Kind::kReceiveSkips, &pass, from, edge.to, &edge});
    }
  }
  std::erase_if(messages, [&](const Message& m) { return m.from != stage_ && m.to != stage_; });
  std::ranges::sort(messages, {}, &Message::Order);
  if (base::Planted("pipe_all_send_first")) {
    std::stable_partition(messages.begin(), messages.end(), [&](const Message& m) { return m.from == stage_; });
  }
  for (const Message& message : messages) {
    const bool sends = message.from == stage_;
    ops.push_back({.kind = sends ? message.send : message.receive,
                   .job = message.pass->job,
                   .step = message.pass->step,
                   .patches = message.pass->patches,
                   .peer = sends ? message.to : message.from,
                   .slot = slot_,
                   .blocks = message.edge == nullptr ? std::vector<int>() : message.edge->blocks});
  }
}

void PipelinePlanner::EmitBarrier(std::vector<StageOp>& ops) const {
  for (const Pass& pass : passes_) {
    if (!pass.barrier_after || pass.start + stages_ - 1 != slot_) continue;
    ops.push_back(
        {.kind = StageOp::Kind::kBarrier, .job = pass.job, .step = pass.step, .patches = {0, patches_}, .slot = slot_});
  }
}

absl::StatusOr<std::vector<StageOp>> PipeFusionPlan(const Pipeline& pipeline, int stage,
                                                    std::span<const PipeStep> stream) {
  auto planner = PipelinePlanner::Create(pipeline, stage);
  if (!planner.ok()) return planner.status();
  std::vector<StageOp> plan;
  const auto append = [&](std::vector<StageOp> ops) { std::ranges::move(ops, std::back_inserter(plan)); };
  for (size_t i = 0; i < stream.size(); ++i) {
    auto ops = planner->Step(stream[i]);
    if (!ops.ok()) return ops.status();
    append(*std::move(ops));
    if (i + 1 == stream.size() || stream[i + 1].job != stream[i].job) append(planner->Flush());
  }
  return plan;
}

std::vector<PipeStep> StepsOfJob(int64_t job, int steps, int warmup) {
  std::vector<PipeStep> stream;
  for (int step = 0; step < steps; ++step) stream.push_back({.job = job, .step = step, .whole = step < warmup});
  return stream;
}

}  // namespace tessera::parallel
