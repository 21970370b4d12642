#include "runtime/mesh_forward.h"

#include <algorithm>
#include <memory>

#include "kernels/planted.h"
#include "parallel/attention/policies.h"
#include "parallel/functional.h"

namespace tessera {
namespace {

// Moves a block's state from stage to stage. Both sides know its shapes: a state is of the shapes that Embed gives, and
// a skip of the image's.
class StageLink {
 public:
  StageLink(const Transformer& transformer, Communicator& pipe) : transformer_(transformer), pipe_(pipe) {}

  void Receive(BlockState& state) {
    const int stage = pipe_.rank();
    ReceiveTensor(state.image, stage - 1);
    if (state.text.defined()) ReceiveTensor(state.text, stage - 1);
    for (const LongSkip& skip : transformer_.long_skips()) {
      if (StageOf(skip.to) != stage || StageOf(skip.from) == stage) continue;
      at::Tensor tensor = at::empty_like(state.image);
      ReceiveTensor(tensor, StageOf(skip.from));
      state.skips[skip.from] = tensor;
    }
  }

  // The state first: the stage that waits for a skip waits for its state before that.
  void Send(const BlockState& state) {
    const int stage = pipe_.rank();
    if (stage + 1 < pipe_.size()) {
      pipe_.Send(state.image.contiguous(), stage + 1);
      if (state.text.defined()) pipe_.Send(state.text.contiguous(), stage + 1);
    }
    for (const LongSkip& skip : transformer_.long_skips()) {
      if (StageOf(skip.from) != stage || StageOf(skip.to) == stage) continue;
      const at::Tensor& kept = Planted("skip_of_wrong_block") ? state.image : state.skips.at(skip.from);
      pipe_.Send(kept.contiguous(), StageOf(skip.to));
    }
  }

 private:
  int StageOf(int block) const {
    for (int s = 0; s < pipe_.size(); ++s) {
      const BlockRange range = StageBlocks(transformer_.num_blocks(), s, pipe_.size());
      if (block >= range.begin && block < range.end) return s;
    }
    return -1;
  }

  void ReceiveTensor(at::Tensor& tensor, int from) {
    tensor = at::empty(tensor.sizes(), tensor.options());
    pipe_.Recv(tensor, from);
  }

  const Transformer& transformer_;
  Communicator& pipe_;
};

}  // namespace

BlockRange StageBlocks(int blocks, int stage, int stages) {
  return {.begin = blocks * stage / stages, .end = blocks * (stage + 1) / stages};
}

WeightShare ShareOf(const Mesh& mesh, int rank, int blocks) {
  const BlockRange stage = StageBlocks(blocks, mesh.Coord(rank, Axis::kPipe), mesh.size(Axis::kPipe));
  return {.tensor = {.rank = mesh.Coord(rank, Axis::kTensor), .size = mesh.size(Axis::kTensor)},
          .blocks = {.begin = stage.begin, .end = stage.end}};
}

at::Tensor ForwardOnMesh(const Transformer& transformer, const TransformerInput& input, const RankGroups& groups,
                         std::span<const int> skipped_blocks) {
  const bool joint = transformer.joint_text() && input.text.defined();
  const int64_t text_count = joint ? input.text.size(1) : 0;
  const int copies = Planted("text_keys_twice") ? groups.sequence.size() : 1;  // of the text, over the group
  const absl::StatusOr<TokenLayout> tokens = TokenLayout::Create({.image = input.grid.count(),
                                                                  .text = text_count * copies,
                                                                  .ring = groups.ring.size(),
                                                                  .ulysses = groups.ulysses.size()});
  TORCH_CHECK(tokens.ok(), std::string(tokens.status().message()));
  const int ring = groups.ring.rank(), ulysses = groups.ulysses.rank();
  const std::vector<int64_t> image_rows = tokens->GroupRows(TokenRows::kImage, tokens->all());
  TransformerInput local = input;
  local.span = tokens->Image(/*patch=*/0, ring, ulysses);
  local.patches = TakeShard(input.patches, 1, image_rows, groups.sequence);
  if (joint && copies == 1) {
    local.text = TakeShard(input.text, 1, tokens->GroupRows(TokenRows::kText, tokens->all()), groups.sequence);
  }

  NoExchange no_exchange;
  UlyssesExchange exchange(*tokens, ring, groups.ulysses);
  LocalReader local_reader;
  RingReader ring_reader(*tokens, groups.ring);
  PolicyAttention attention(groups.ulysses.size() > 1 ? static_cast<HeadExchange&>(exchange) : no_exchange,
                            groups.ring.size() > 1 ? static_cast<KvReader&>(ring_reader) : local_reader);
  const ForwardContext context{.attention = attention, .tensor = groups.tensor, .world = groups.world};

  const Conditioning conditioning = transformer.Condition(local, context);
  BlockState state = transformer.Embed(local, context);
  StageLink link(transformer, groups.pipe);
  const int stage = groups.pipe.rank(), stages = groups.pipe.size();
  if (stage > 0) link.Receive(state);
  const BlockRange range = StageBlocks(transformer.num_blocks(), stage, stages);
  for (int i = range.begin; i < range.end; ++i) {
    if (std::ranges::find(skipped_blocks, i) != skipped_blocks.end()) continue;
    transformer.Block(i, state, conditioning, context);
  }
  link.Send(state);
  at::Tensor output = transformer.Head(state, conditioning, context);  // of the last stage's state it is the result
  if (stages > 1) {
    output = output.contiguous();
    groups.pipe.Broadcast(output, stages - 1);
  }
  return GatherDim(output, 1, image_rows, groups.sequence);
}

}  // namespace tessera
