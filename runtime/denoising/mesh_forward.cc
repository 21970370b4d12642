#include "runtime/denoising/mesh_forward.h"

#include <algorithm>
#include <string>

#include "base/macros/planted.h"
#include "parallel/attention/policies.h"
#include "parallel/functional.h"
#include "parallel/plan/stage_balance.h"

namespace tessera::runtime {
namespace {

using Kind = parallel::StageOp::Kind;

// The tokens of reference pictures among those of a joint text.
int64_t References(const ForwardRows& rows, int64_t text) { return text == 0 ? 0 : models::TokensOf(rows.references); }

parallel::TokenLayout LayOut(const parallel::Pipeline& pipeline, const parallel::RankGroups& groups,
                             const ForwardRows& rows, int64_t text) {
  const absl::StatusOr<parallel::TokenLayout> tokens =
      parallel::TokenLayout::Create({.image = rows.grid.count(),
                                     .text = text,
                                     .patches = pipeline.patches,
                                     .ring = groups.ring.size(),
                                     .ulysses = groups.ulysses.size(),
                                     .text_work = rows.text_work,
                                     .references = References(rows, text)});
  TORCH_CHECK(tokens.ok(), std::string(tokens.status().message()));
  return *tokens;
}

// Returns how many copies of a joint text the group holds.
int TextCopies(const parallel::RankGroups& groups) {
  return base::Planted("text_keys_twice") ? groups.sequence.size() : 1;
}

int64_t JointText(const models::Transformer& transformer, const ForwardRows& rows, const parallel::RankGroups& groups) {
  return transformer.joint_text() && rows.text.defined() ? rows.text.size(1) * TextCopies(groups) : 0;
}

at::Tensor Joined(const std::vector<at::Tensor>& parts) { return parts.size() == 1 ? parts.front() : at::cat(parts); }

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
      rows_(std::move(rows)),
      joint_(transformer.joint_text() && rows_.text.defined()),
      tokens_(LayOut(pipeline, groups, rows_, JointText(transformer, rows_, groups))),
      plain_{.attention = no_attention_,
             .tensor = groups.tensor,
             .world = groups.world,
             .adapters = models::AdaptersOf(rows_.adapters, "transformer")},
      embedded_{.image = transformer.Embed(rows_.patches, rows_.positions.Of({}).embedded, plain_),
                .text = rows_.text,
                .skips = {}} {
  TORCH_CHECK(pipeline.stages() == groups.pipe.size(), pipeline.stages(), " stages for a pipe of ", groups.pipe.size());
  if (joint_ && TextCopies(groups) == 1) {
    const parallel::TokenSpan own = tokens_.Text(groups.ring.rank(), groups.ulysses.rank());
    embedded_.text = rows_.text.narrow(1, own.begin, own.count());
  }
}

// Returns the joint text if the patches include it, otherwise no tokens of it. Other text is part of every pass.
at::Tensor MeshForward::TextOf(parallel::PatchRange patches) const {
  return joint_ && !patches.with_text() ? embedded_.text.narrow(1, 0, 0) : embedded_.text;
}

int64_t MeshForward::ReferencesIn(int64_t rows) const {
  return rows == 0 ? 0 : tokens_.References(groups_.ring.rank(), groups_.ulysses.rank()).count();
}

std::vector<parallel::TokenRun> MeshForward::ImageRuns(parallel::PatchRange patches) const {
  return tokens_.Runs(parallel::TokenRows::kImage, patches, groups_.ring.rank(), groups_.ulysses.rank());
}

// Returns positions with text rows first, as in Conditioning; those in `embedded` are only the image's.
const models::Positions& MeshForward::PositionsOf(parallel::PatchRange patches) {
  const auto [entry, is_new] = placed_.try_emplace({patches.begin, patches.end});
  if (!is_new) return entry->second;
  std::vector<models::Positions> rows;
  if (joint_ && patches.with_text()) {
    const int64_t text = tokens_.counts().text - models::TokensOf(rows_.references);
    rows.push_back(models::PlaceJointText(transformer_, text, rows_.grid, rows_.references, rows_.patches.device())
                       .Of(tokens_.Text(groups_.ring.rank(), groups_.ulysses.rank())));
  }
  for (const parallel::TokenRun& run : ImageRuns(patches)) rows.push_back(rows_.positions.Of(run.tokens));
  if (rows.empty()) rows.push_back(rows_.positions.Of({}));
  return entry->second = models::Join(rows);
}

models::BlockState MeshForward::EmbedPass(const parallel::StageOp& op, const at::Tensor& patches) {
  const int64_t first = tokens_.Patch(op.patches.begin).begin;
  std::vector<at::Tensor> runs;
  for (const parallel::TokenRun& run : ImageRuns(op.patches)) {
    runs.push_back(patches.narrow(1, run.tokens.begin - first, run.tokens.count()));
  }
  models::BlockState state{.image = embedded_.image, .text = TextOf(op.patches), .skips = {}};
  if (!runs.empty()) {
    state.image = transformer_.Embed(runs.size() == 1 ? runs.front() : at::cat(runs, 1),
                                     PositionsOf(op.patches).embedded, plain_);
  }
  return state;
}

void MeshForward::Compute(const parallel::StageOp& op, Modulations modulations, const at::Tensor& patches) {
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
  const parallel::ForwardContext context{
      .attention = attention, .tensor = groups_.tensor, .world = groups_.world, .adapters = plain_.adapters};

  const models::Positions& positions = PositionsOf(op.patches);
  models::Conditioning conditioning{
      .modulation = {}, .text_bias = rows_.text_bias, .cos = positions.cos, .sin = positions.sin};
  models::BlockState state = stage() == 0 ? EmbedPass(op, patches) : std::move(pass_.received);
  pass_.received = {};
  conditioning.references = joint_ ? ReferencesIn(state.text.size(1)) : 0;
  conditioning.has_references = tokens_.counts().references > 0 && op.patches.with_text();
  if (joint_) {
    conditioning.attended_references = {.begin = state.text.size(1) - conditioning.references,
                                        .end = state.text.size(1)};
  }
  if (stage() == 0) Record(op, -1, state);
  if (const auto skips = pass_.skips.find({op.step, op.patches.begin}); skips != pass_.skips.end()) {
    state.skips = std::move(skips->second);
    pass_.skips.erase(skips);
  }
  const auto bounds = pipeline_.bounds.begin() + stage();
  for (int block = bounds[0]; block < bounds[1]; ++block) {
    if (std::ranges::find(rows_.skipped_blocks, block) != rows_.skipped_blocks.end()) continue;
    conditioning.modulation = Joined(modulations(block));
    transformer_.Block(block, state, conditioning, context);
    Record(op, block, state);
  }
  if (is_last_stage()) {
    conditioning.modulation = Joined(modulations(transformer_.num_blocks()));
    pass_.output = transformer_.Head(state, conditioning, context);
    Record(op, transformer_.num_blocks(), {.image = pass_.output, .text = {}, .skips = {}});
  } else {
    pass_.sent = std::move(state);
  }
}

void MeshForward::Record(const parallel::StageOp& op, int block, const models::BlockState& state) const {
  if (recorder_ == nullptr) return;
  recorder_->Record(block, ImageRuns(op.patches), state.image);
  if (joint_ && op.patches.with_text() && state.text.defined()) {
    recorder_->Record(block,
                      tokens_.Runs(parallel::TokenRows::kText, op.patches, groups_.ring.rank(), groups_.ulysses.rank()),
                      state.text);
  }
}

at::Tensor MeshForward::Buffer(const parallel::StageOp& op, int part, const at::Tensor& like, int64_t rows) {
  at::Tensor& buffer = buffers_[{op.kind, op.patches.begin, op.patches.end, part}];
  if (!buffer.defined()) buffer = at::empty({like.size(0), rows, like.size(2)}, like.options());
  return buffer;
}

void MeshForward::AddTransfers(const parallel::StageOp& op, std::vector<parallel::Transfer>& transfers) {
  const int64_t image_rows =
      tokens_.Rows(parallel::TokenRows::kImage, op.patches, groups_.ring.rank(), groups_.ulysses.rank());
  const bool with_text = joint_ && op.patches.with_text();
  const auto send = [&](const at::Tensor& tensor) {
    transfers.push_back(parallel::Transfer::Send(tensor.contiguous(), op.peer));
  };
  const auto receive = [&](int part, const at::Tensor& like, int64_t rows) {
    transfers.push_back(parallel::Transfer::Receive(Buffer(op, part, like, rows), op.peer));
    return transfers.back().piece;
  };
  switch (op.kind) {
    case Kind::kSendState:
      send(pass_.sent.image);
      if (with_text) send(pass_.sent.text);
      break;
    case Kind::kReceiveState:
      pass_.received = {.image = receive(0, embedded_.image, image_rows), .text = TextOf(op.patches), .skips = {}};
      if (with_text) pass_.received.text = receive(1, embedded_.text, embedded_.text.size(1));
      break;
    case Kind::kSendSkips:
      for (const int block : op.blocks) {
        send(base::Planted("skip_of_wrong_block") ? pass_.sent.image : pass_.sent.skips.at(block));
      }
      break;
    case Kind::kReceiveSkips:
      for (const int block : op.blocks) {
        pass_.skips[{op.step, op.patches.begin}][block] = receive(block, embedded_.image, image_rows);
      }
      break;
    case Kind::kSendResult:
      send(pass_.output);
      break;
    case Kind::kReceiveResult:
      pass_.output = receive(0, ResultLike(0), image_rows);
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

at::Tensor MeshForward::ResultLike(int64_t tokens) const {
  return at::empty({rows_.patches.size(0), tokens, transformer_.output_features()}, rows_.patches.options());
}

size_t ExchangeSlot(std::span<const parallel::StageOp> ops, size_t begin, std::span<MeshForward* const> forwards,
                    parallel::Communicator& pipe) {
  size_t end = begin;
  std::vector<parallel::Transfer> transfers;
  for (; end < ops.size() && ops[end].is_message() && ops[end].slot == ops[begin].slot; ++end) {
    for (MeshForward* forward : forwards) forward->AddTransfers(ops[end], transfers);
  }
  pipe.Exchange(transfers);
  return end;
}

at::Tensor ForwardOnMesh(const models::Transformer& transformer, ForwardRows rows, Modulations modulations,
                         const at::Tensor& patches, const parallel::RankGroups& groups,
                         std::span<const int> stage_bounds) {
  const parallel::Pipeline pipeline{.bounds = {stage_bounds.begin(), stage_bounds.end()},
                                    .skips = transformer.long_skips()};
  MeshForward forward(transformer, groups, pipeline, std::move(rows));
  const absl::StatusOr<std::vector<parallel::StageOp>> plan = parallel::PipeFusionPlan(
      pipeline, groups.pipe.rank(), parallel::StepsOfJob(/*job=*/0, /*steps=*/1, /*warmup=*/1));
  TORCH_CHECK(plan.ok(), std::string(plan.status().message()));
  MeshForward* const forwards[] = {&forward};
  for (size_t i = 0; i < plan->size();) {
    if ((*plan)[i].is_message()) {
      i = ExchangeSlot(*plan, i, forwards, groups.pipe);
      continue;
    }
    if ((*plan)[i].kind == Kind::kCompute) forward.Compute((*plan)[i], modulations, patches);
    ++i;
  }
  at::Tensor output = groups.pipe.rank() == 0 ? forward.Result(plan->front()) : forward.ResultLike(patches.size(1));
  if (groups.pipe.size() > 1) {
    output = output.contiguous();
    groups.pipe.Broadcast(output, 0);
  }
  return output;
}

}  // namespace tessera::runtime
