#include "runtime/denoising/mesh_forward.h"

#include <algorithm>
#include <string>

#include "base/planted.h"
#include "parallel/attention/policies.h"
#include "parallel/functional.h"
#include "parallel/plan/stage_balance.h"

namespace tessera::runtime {
namespace {

using Kind = parallel::StageOp::Kind;

parallel::TokenLayout LayOut(const parallel::Pipeline& pipeline, const parallel::RankGroups& groups,
                             const ForwardRows& rows, int64_t text) {
  const absl::StatusOr<parallel::TokenLayout> tokens = parallel::TokenLayout::Create({.image = rows.input.grid.count(),
                                                                                      .text = text,
                                                                                      .patches = pipeline.patches,
                                                                                      .ring = groups.ring.size(),
                                                                                      .ulysses = groups.ulysses.size(),
                                                                                      .text_work = rows.text_work});
  TORCH_CHECK(tokens.ok(), std::string(tokens.status().message()));
  return *tokens;
}

// Copies of a joint text over the group.
int TextCopies(const parallel::RankGroups& groups) {
  return base::Planted("text_keys_twice") ? groups.sequence.size() : 1;
}

int64_t JointText(const models::Transformer& transformer, const models::TransformerInput& input,
                  const parallel::RankGroups& groups) {
  return transformer.joint_text() && input.text.defined() ? input.text.size(1) * TextCopies(groups) : 0;
}

}  // namespace

std::vector<int> StageBounds(std::span<const double> block_costs, int stages) {
  absl::StatusOr<std::vector<int>> bounds = parallel::BalanceStages(block_costs, stages);
  TORCH_CHECK(bounds.ok(), std::string(bounds.status().message()));
  return *std::move(bounds);
}

models::WeightShare ShareOf(const parallel::Mesh& mesh, int rank, std::span<const int> bounds) {
  const auto stage = static_cast<size_t>(mesh.Coord(rank, parallel::Axis::kPipe));
  return {.tensor = {.rank = mesh.Coord(rank, parallel::Axis::kTensor), .size = mesh.size(parallel::Axis::kTensor)},
          .blocks = {.begin = bounds[stage], .end = bounds[stage + 1]}};
}

MeshForward::MeshForward(const models::Transformer& transformer, const parallel::RankGroups& groups,
                         const parallel::Pipeline& pipeline, ForwardRows rows)
    : transformer_(transformer),
      groups_(groups),
      pipeline_(pipeline),
      skipped_(rows.skipped_blocks),
      joint_(transformer.joint_text() && rows.input.text.defined()),
      tokens_(LayOut(pipeline, groups, rows, JointText(transformer, rows.input, groups))),
      input_(std::move(rows.input)),
      plain_{.attention = no_attention_, .tensor = groups.tensor, .world = groups.world},
      rotary_{.patches = std::vector<Rotary>(static_cast<size_t>(pipeline.patches)), .text = {}} {
  TORCH_CHECK(pipeline.stages() == groups.pipe.size(), pipeline.stages(), " stages for a pipe of ", groups.pipe.size());
  if (joint_ && TextCopies(groups) == 1) {
    input_.text = parallel::TakeShard(input_.text, 1, tokens_.GroupRows(parallel::TokenRows::kText, tokens_.all()),
                                      groups.sequence);
  }
  embedded_ = transformer.Embed(InputFor({}, /*with_text=*/true), plain_);
}

// No tokens of the image yet; joint text or none of it. Other text is part of every pass.
models::TransformerInput MeshForward::InputFor(parallel::TokenSpan span, bool with_text) const {
  models::TransformerInput input = input_;
  input.span = span;
  if (joint_ && !with_text) input.text = input.text.narrow(1, 0, 0);
  return input;
}

at::Tensor MeshForward::TextOf(parallel::PatchRange patches) const {
  return joint_ && !patches.with_text() ? embedded_.text.narrow(1, 0, 0) : embedded_.text;
}

const models::Conditioning& MeshForward::ConditionStep(const parallel::StageOp& op, const at::Tensor& timestep) {
  if (step_.number != op.step) {
    models::TransformerInput input = InputFor({}, /*with_text=*/false);
    input.timestep = timestep;
    step_.conditioning = transformer_.Condition(input, plain_);
    step_.number = op.step;
  }
  return step_.conditioning;
}

// Text rows first, as Conditioning has them.
MeshForward::Rotary MeshForward::RotaryOf(parallel::PatchRange patches, const at::Tensor& timestep) {
  const auto of = [&](parallel::TokenSpan span, bool with_text, Rotary& rotary) {
    if (rotary.first.defined()) return;
    models::TransformerInput input = InputFor(span, with_text);
    input.timestep = timestep;
    const models::Conditioning conditioning = transformer_.Condition(input, plain_);
    rotary = {conditioning.cos, conditioning.sin};
  };
  std::vector<at::Tensor> cos, sin;
  const auto add = [&](const Rotary& rotary) {
    cos.push_back(rotary.first);
    sin.push_back(rotary.second);
  };
  if (joint_ && patches.with_text()) {
    of({}, true, rotary_.text);
    add(rotary_.text);
  }
  for (int patch = patches.begin; patch < patches.end; ++patch) {
    Rotary& rotary = rotary_.patches[static_cast<size_t>(patch)];
    of(tokens_.Image(patch, groups_.ring.rank(), groups_.ulysses.rank()), false, rotary);
    add(rotary);
  }
  return {at::cat(cos), at::cat(sin)};
}

models::BlockState MeshForward::EmbedPass(const parallel::StageOp& op, const at::Tensor& patches) const {
  const int64_t first = tokens_.Patch(op.patches.begin).begin;
  std::vector<at::Tensor> runs;
  for (const parallel::TokenRun& run :
       tokens_.Runs(parallel::TokenRows::kImage, op.patches, groups_.ring.rank(), groups_.ulysses.rank())) {
    models::TransformerInput input = InputFor(run.tokens, /*with_text=*/false);
    input.patches = patches.narrow(1, run.tokens.begin - first, run.tokens.count());
    runs.push_back(transformer_.Embed(input, plain_).image);
  }
  return {.image = runs.empty() ? embedded_.image : at::cat(runs, 1), .text = TextOf(op.patches), .skips = {}};
}

void MeshForward::Compute(const parallel::StageOp& op, const at::Tensor& timestep, const at::Tensor& patches) {
  const parallel::PatchRange held = stale_ != nullptr ? tokens_.all() : op.patches;
  parallel::NoExchange no_exchange;
  parallel::UlyssesExchange exchange(tokens_, op.patches, groups_.ring.rank(), groups_.ulysses);
  parallel::FreshStore fresh;
  if (stale_ != nullptr) stale_->BeginPass(op.patches);
  parallel::LocalReader local_reader;
  parallel::RingReader ring_reader(tokens_, held, groups_.ring);
  parallel::PolicyAttention attention(
      groups_.ulysses.size() > 1 ? static_cast<parallel::HeadExchange&>(exchange) : no_exchange,
      stale_ != nullptr ? static_cast<parallel::KvStore&>(*stale_) : fresh,
      groups_.ring.size() > 1 ? static_cast<parallel::KvReader&>(ring_reader) : local_reader);
  const parallel::ForwardContext context{.attention = attention, .tensor = groups_.tensor, .world = groups_.world};

  models::Conditioning conditioning = ConditionStep(op, timestep);
  if (conditioning.cos.defined()) std::tie(conditioning.cos, conditioning.sin) = RotaryOf(op.patches, timestep);
  models::BlockState state = stage() == 0 ? EmbedPass(op, patches) : std::move(pass_.received);
  pass_.received = {};
  if (stage() == 0) Record(op, -1, state);
  if (const auto skips = pass_.skips.find({op.step, op.patches.begin}); skips != pass_.skips.end()) {
    state.skips = std::move(skips->second);
    pass_.skips.erase(skips);
  }
  const auto bounds = pipeline_.bounds.begin() + stage();
  for (int block = bounds[0]; block < bounds[1]; ++block) {
    if (std::ranges::find(skipped_, block) != skipped_.end()) continue;
    transformer_.Block(block, state, conditioning, context);
    Record(op, block, state);
  }
  if (is_last_stage()) {
    pass_.output = transformer_.Head(state, conditioning, context);
    Record(op, transformer_.num_blocks(), {.image = pass_.output, .text = {}, .skips = {}});
  } else {
    pass_.sent = std::move(state);
  }
}

void MeshForward::Record(const parallel::StageOp& op, int block, const models::BlockState& state) const {
  if (recorder_ == nullptr) return;
  const auto runs = [&](parallel::TokenRows rows) {
    return tokens_.Runs(rows, op.patches, groups_.ring.rank(), groups_.ulysses.rank());
  };
  recorder_->Record(block, runs(parallel::TokenRows::kImage), state.image);
  if (joint_ && op.patches.with_text() && state.text.defined()) {
    recorder_->Record(block, runs(parallel::TokenRows::kText), state.text);
  }
}

void MeshForward::ReceiveLike(at::Tensor& tensor, const at::Tensor& like, int64_t rows, int from) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape[1] = rows;
  tensor = at::empty(shape, like.options());
  groups_.pipe.Recv(tensor, from);
}

void MeshForward::Exchange(const parallel::StageOp& op) {
  const auto rows = [&](parallel::TokenRows of) {
    return tokens_.Rows(of, op.patches, groups_.ring.rank(), groups_.ulysses.rank());
  };
  const bool with_text = joint_ && op.patches.with_text();
  switch (op.kind) {
    case Kind::kSendState:
      groups_.pipe.Send(pass_.sent.image.contiguous(), op.peer);
      if (with_text) groups_.pipe.Send(pass_.sent.text.contiguous(), op.peer);
      break;
    case Kind::kReceiveState:
      pass_.received = {.image = {}, .text = TextOf(op.patches), .skips = {}};
      ReceiveLike(pass_.received.image, embedded_.image, rows(parallel::TokenRows::kImage), op.peer);
      if (with_text) ReceiveLike(pass_.received.text, embedded_.text, embedded_.text.size(1), op.peer);
      break;
    case Kind::kSendSkips:
      for (const int block : op.blocks) {
        const at::Tensor& kept = base::Planted("skip_of_wrong_block") ? pass_.sent.image : pass_.sent.skips.at(block);
        groups_.pipe.Send(kept.contiguous(), op.peer);
      }
      break;
    case Kind::kReceiveSkips:
      for (const int block : op.blocks) {
        ReceiveLike(pass_.skips[{op.step, op.patches.begin}][block], embedded_.image, rows(parallel::TokenRows::kImage),
                    op.peer);
      }
      break;
    case Kind::kSendResult:
      groups_.pipe.Send(pass_.output.contiguous(), op.peer);
      break;
    case Kind::kReceiveResult:
      ReceiveLike(pass_.output, ResultLike(0), rows(parallel::TokenRows::kImage), op.peer);
      break;
    case Kind::kCompute:
    case Kind::kBarrier:
    case Kind::kFlush:
      break;
  }
}

at::Tensor MeshForward::Result(const parallel::StageOp& op) {
  at::Tensor gathered = parallel::GatherDim(pass_.output, 1, tokens_.GroupRows(parallel::TokenRows::kImage, op.patches),
                                            groups_.sequence);
  const std::vector<parallel::TokenRun> runs = tokens_.GatheredRuns(parallel::TokenRows::kImage, op.patches);
  if (runs.size() <= 1 || base::Planted("strips_in_arrival_order")) return gathered;
  const int64_t first = tokens_.Patch(op.patches.begin).begin;
  at::Tensor result = at::empty_like(gathered);
  int64_t from = 0;
  for (const parallel::TokenRun& run : runs) {
    result.narrow(1, run.tokens.begin - first, run.tokens.count()).copy_(gathered.narrow(1, from, run.tokens.count()));
    from += run.tokens.count();
  }
  return result;
}

at::Tensor MeshForward::ResultLike(int64_t tokens) {
  const at::Tensor none = transformer_.Head(embedded_, step_.conditioning, plain_);  // [b, 0, features]
  return at::empty({none.size(0), tokens, none.size(2)}, none.options());
}

at::Tensor ForwardOnMesh(const models::Transformer& transformer, const models::TransformerInput& input,
                         const parallel::RankGroups& groups, std::span<const int> stage_bounds,
                         std::span<const int> skipped_blocks) {
  ForwardRows rows{.input = input, .skipped_blocks = {skipped_blocks.begin(), skipped_blocks.end()}};
  rows.input.patches = input.patches.narrow(1, 0, 0);
  const parallel::Pipeline pipeline{.bounds = {stage_bounds.begin(), stage_bounds.end()},
                                    .skips = transformer.long_skips()};
  MeshForward forward(transformer, groups, pipeline, std::move(rows));
  const absl::StatusOr<std::vector<parallel::StageOp>> plan = parallel::PipeFusionPlan(
      pipeline, groups.pipe.rank(), parallel::StepsOfJob(/*job=*/0, /*steps=*/1, /*warmup=*/1));
  TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
  for (const parallel::StageOp& op : *plan) {
    if (op.kind == Kind::kCompute) {
      forward.Compute(op, input.timestep, input.patches);
    } else {
      forward.Exchange(op);
    }
  }
  at::Tensor output = groups.pipe.rank() == 0 ? forward.Result(plan->front()) : forward.ResultLike(input.grid.count());
  if (groups.pipe.size() > 1) {
    output = output.contiguous();
    groups.pipe.Broadcast(output, 0);
  }
  return output;
}

}  // namespace tessera::runtime
