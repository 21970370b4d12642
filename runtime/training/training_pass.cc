#include "runtime/training/training_pass.h"

#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/macros/planted.h"
#include "models/precision.h"
#include "parallel/attention/policies.h"
#include "parallel/functional.h"
#include "parallel/plan/one_forward_one_backward.h"
#include "parallel/plan/token_layout.h"

namespace tessera::runtime {
namespace {

using parallel::TokenRows;
using Direction = parallel::StagePass::Direction;
using torch::autograd::variable_list;

models::LatentGeometry GeometryOf(const models::Family& family, const at::Tensor& latents) {
  TORCH_CHECK(latents.dim() == 4, "latents are [b, c, h, w], not ", latents.sizes());
  models::LatentGeometry geometry{
      .channels = latents.size(1), .height = latents.size(2), .width = latents.size(3), .grid = {}};
  const at::Tensor patches = family.ToPatches(latents.narrow(0, 0, 1).to(at::kMeta));
  const auto side = static_cast<int64_t>(std::lround(
      std::sqrt(static_cast<double>(geometry.height * geometry.width) / static_cast<double>(patches.size(1)))));
  geometry.grid = {.height = geometry.height / side, .width = geometry.width / side};
  geometry.grid.padding = family.PaddingOf(geometry.grid);
  TORCH_CHECK(geometry.grid.image() == patches.size(1) && geometry.grid.height * side == geometry.height, "latents ",
              latents.sizes(), " are not a whole number of patches");
  return geometry;
}

// `text` are the tokens of a joint text, of which the last are those of `references`.
parallel::TokenLayout LayOut(const parallel::RankGroups& groups, int64_t image, int64_t text, int64_t references) {
  const absl::StatusOr<parallel::TokenLayout> tokens = parallel::TokenLayout::Create({.image = image,
                                                                                      .text = text,
                                                                                      .ring = groups.ring.size(),
                                                                                      .ulysses = groups.ulysses.size(),
                                                                                      .references = references});
  TORCH_CHECK(tokens.ok(), std::string(tokens.status().message()));
  return *tokens;
}

// Texts [t, width] each, or all undefined; zero-padded to the longest, with a bias that masks the padding.
struct StackedTexts {
  at::Tensor text;  // [b, t, width]
  at::Tensor bias;  // [b, t]; undefined if all texts have the same length
};

StackedTexts StackTexts(const models::Family& family, const std::vector<models::ConditioningRow>& rows) {
  if (!rows.front().text.defined()) return {};
  int64_t longest = 0, shortest = rows.front().text.size(0);
  for (const models::ConditioningRow& row : rows) {
    longest = std::max(longest, row.text.size(0));
    shortest = std::min(shortest, row.text.size(0));
  }
  TORCH_CHECK(longest == shortest || family.masks_padding(), "texts of ", shortest, " and of ", longest,
              " tokens in a batch of a family that masks no padding");
  std::vector<at::Tensor> texts, masks;
  for (const models::ConditioningRow& row : rows) {
    const int64_t own = row.text.size(0);
    texts.push_back(at::constant_pad_nd(row.text, {0, 0, 0, longest - own}));
    masks.push_back(at::constant_pad_nd(at::ones({own}, row.text.options()), {0, longest - own}));
  }
  StackedTexts stacked{.text = at::stack(texts), .bias = {}};
  if (longest != shortest) stacked.bias = models::MaskedTextBias(at::stack(masks), family.dtype());
  return stacked;
}

std::vector<at::Tensor> StackExtras(const std::vector<models::ConditioningRow>& rows) {
  std::vector<at::Tensor> stacked;
  for (size_t i = 0; i < rows.front().extras.size(); ++i) {
    std::vector<at::Tensor> of_rows;
    for (const models::ConditioningRow& row : rows) of_rows.push_back(row.extras[i]);
    stacked.push_back(at::stack(of_rows));
  }
  return stacked;
}

at::Tensor Leaf(const at::Tensor& x, bool with_gradient = true) {
  if (!x.defined()) return x;
  return x.detach().requires_grad_(with_gradient);
}

models::BlockState Leaves(const models::BlockState& state, bool text_gradient) {
  models::BlockState leaves{.image = Leaf(state.image), .text = Leaf(state.text, text_gradient), .skips = {}};
  for (const auto& [block, skip] : state.skips) leaves.skips[block] = Leaf(skip);
  return leaves;
}

// Runs backward from those roots that have a gradient.
struct Roots {
  variable_list tensors, gradients;

  void Add(const at::Tensor& root, const at::Tensor& gradient) {
    if (!root.defined() || !gradient.defined() || !root.requires_grad()) return;
    tensors.push_back(root);
    gradients.push_back(gradient);
  }
  void Backward() const {
    if (!tensors.empty()) torch::autograd::backward(tensors, gradients);
  }
};

// The attention of the blocks on this rank, and the other context of a forward pass.
struct MeshContext {
  // `tensor_tokens` as in the ForwardContext of blocks.
  MeshContext(const parallel::RankGroups& groups, const parallel::TokenLayout& tokens,
              const parallel::TensorTokens* tensor_tokens, const parallel::AdapterFactors* adapters)
      : exchange(tokens, tokens.all(), groups.ring.rank(), groups.ulysses),
        ring_reader(tokens, tokens.all(), groups.ring),
        attention(groups.ulysses.size() > 1 ? static_cast<parallel::HeadExchange&>(exchange) : no_exchange, fresh,
                  groups.ring.size() > 1 ? static_cast<parallel::KvReader&>(ring_reader) : local_reader),
        plain{.attention = no_attention, .tensor = groups.tensor, .world = groups.world, .adapters = adapters},
        of_blocks{.attention = attention,
                  .tensor = groups.tensor,
                  .world = groups.world,
                  .adapters = adapters,
                  .tensor_tokens = tensor_tokens} {}
  MeshContext(const MeshContext&) = delete;
  MeshContext& operator=(const MeshContext&) = delete;

  parallel::NoExchange no_exchange;
  parallel::UlyssesExchange exchange;
  parallel::FreshStore fresh;
  parallel::LocalReader local_reader;
  parallel::RingReader ring_reader;
  parallel::PolicyAttention attention;
  parallel::LocalAttention no_attention;
  const parallel::ForwardContext plain;  // for parts without attention over image tokens
  const parallel::ForwardContext of_blocks;
};

// One micro-batch in this rank's stage. In the forward pass collectives run in the order of the calls, which is the
// same on all ranks of the stage; in the backward pass in the order in which autograd reaches them, which follows from
// the order of the forward pass.
class MicroBatch final {
 public:
  MicroBatch(const models::Family& family, const parallel::RankGroups& groups, const TrainingPassOptions& options,
             const TrainingBatch& batch)
      : family_(family),
        transformer_(family.transformer()),
        groups_(groups),
        options_(options),
        batch_(batch),
        first_block_(groups.pipe.size() > 1 ? options.stage_bounds[static_cast<size_t>(groups.pipe.rank())] : 0),
        end_block_(groups.pipe.size() > 1 ? options.stage_bounds[static_cast<size_t>(groups.pipe.rank()) + 1]
                                          : transformer_.num_blocks()),
        frame_(options.weights, models::WeightResidency::kFrame),
        geometry_(GeometryOf(family, batch.sample.noisy)),
        texts_(StackTexts(family, batch.rows)),
        joint_(transformer_.joint_text() && texts_.text.defined()),
        tokens_(LayOut(groups, geometry_.grid.count(),
                       joint_ ? texts_.text.size(1) + models::TokensOf(batch.reference_grids) : 0,
                       models::TokensOf(batch.reference_grids))),
        share_(tokens_.Image(0, groups.ring.rank(), groups.ulysses.rank())),
        shared_text_(tokens_.Text(groups.ring.rank(), groups.ulysses.rank())),
        shared_references_(tokens_.References(groups.ring.rank(), groups.ulysses.rank())),
        tensor_tokens_(SharesOut(options, groups)
                           ? std::optional<parallel::TensorTokens>(
                                 std::in_place, shared_references_.count() + share_.count(),
                                 shared_text_.count() - shared_references_.count(), groups.tensor.size())
                           : std::nullopt),
        own_pictures_(tensor_tokens_ ? tensor_tokens_->Image(groups.tensor.rank())
                                     : parallel::TokenSpan{0, shared_references_.count() + share_.count()}),
        own_(ImageOf(own_pictures_)),
        context_(groups, tokens_, tensor_tokens_ ? &*tensor_tokens_ : nullptr, options.adapters) {
    Place();
  }

  // Computes what the model reads once, and the state before the stage's first block, which a later stage receives
  // into.
  void Enter() {
    const models::PromptState prompt = transformer_.Read(texts_.text, StackExtras(batch_.rows), context_.plain);
    step_ = transformer_.EmbedStep(batch_.sample.timesteps.to(family_.device()), prompt.vector, context_.plain);
    state_.text = prompt.text;
    if (joint_) {
      state_.text = parallel::TakeShard(prompt.text, 1, TextRowsOfRanks(), groups_.sequence);
      if (tensor_tokens_) state_.text = parallel::TakeShard(state_.text, 1, tensor_tokens_->text(), groups_.tensor);
    } else if (prompt.text.defined()) {
      state_.text = parallel::CopyToGroup(prompt.text, groups_.sequence);
    }
    const at::Tensor patches = models::Padded(
        family_.ToPatches(batch_.sample.noisy.to(family_.device(), family_.dtype())), geometry_.grid.count());
    if (is_first_stage()) {
      state_.image = transformer_.Embed(patches.narrow(1, own_.begin, own_.count()), embedded_, context_.plain);
      if (!batch_.references.empty()) state_.text = at::cat({state_.text, EmbeddedReferences()}, 1);
      return;
    }
    const at::NoGradGuard no_gradients;
    const at::Tensor like = transformer_.Embed(
        patches.narrow(1, 0, 0), embedded_.defined() ? embedded_.narrow(0, 0, 0) : embedded_, context_.plain);
    const auto tokens = [&like](int64_t rows) { return at::empty({like.size(0), rows, like.size(2)}, like.options()); };
    state_.image = tokens(own_.count());
    if (joint_) state_.text = tokens(state_.text.size(1) + ReferencesOf(own_pictures_).count());
    for (const int skip : SkipsAcross(first_block_)) state_.skips[skip] = tokens(own_.count());
  }

  // Adds the messages that a neighbour sends before a pass in that direction.
  void AddReceives(Direction direction, std::vector<parallel::Transfer>& messages) {
    const bool forward = direction == Direction::kForward;
    if (forward ? is_first_stage() : is_last_stage()) return;
    if (!forward) {
      const auto like = [](const at::Tensor& x) { return at::empty_like(x, at::MemoryFormat::Contiguous); };
      gradient_.image = like(state_.image);
      if (joint_) gradient_.text = like(state_.text);
      for (const int skip : SkipsAcross(end_block_)) gradient_.skips[skip] = like(state_.image);
    }
    for (at::Tensor* piece : forward ? Across(first_block_, state_) : Across(end_block_, gradient_)) {
      messages.push_back(parallel::Transfer::Receive(piece->detach(), groups_.pipe.rank() + (forward ? -1 : 1)));
    }
  }

  // Adds the messages to a neighbour after a pass in that direction. The sent tensors are dropped.
  void AddSends(Direction direction, std::vector<parallel::Transfer>& messages) {
    const bool forward = direction == Direction::kForward;
    if (forward ? is_last_stage() : is_first_stage()) return;
    models::BlockState& sent = forward ? after_ : gradient_;
    if (!forward && base::Planted("text_gradient_ends_at_its_stage")) sent.text = at::Tensor();
    for (at::Tensor* piece : Across(forward ? end_block_ : first_block_, sent)) {
      // An undefined gradient means zero; the receiver does not know that, so send zeros.
      if (!piece->defined()) *piece = at::zeros_like(piece == &sent.text ? state_.text : state_.image);
      messages.push_back(
          parallel::Transfer::Send(piece->detach().contiguous(), groups_.pipe.rank() + (forward ? 1 : -1)));
    }
    sent = {};
  }

  // Returns the losses [b] of this rank's tokens; zeros before the last stage.
  at::Tensor Evaluate() {
    models::BlockState state = state_;
    for (int block = first_block_; block < end_block_; ++block) {
      const models::BroughtPart weights(options_.weights, block);
      RunBlock(block, state, step_);
    }
    if (is_last_stage()) return LossesOf(state, step_);
    after_ = std::move(state);
    return NoLosses();
  }

  // Like Evaluate, as the forward half of a training pass. Each block is a separate graph from its inputs to its
  // outputs, so that nothing of a block is needed while another one runs.
  at::Tensor Forward() {
    models::BlockState state = state_;
    step_leaves_ = {.vector = Leaf(step_.vector, RequiresGradient(step_.vector)),
                    .shared = Leaf(step_.shared, RequiresGradient(step_.shared))};
    for (int block = first_block_; block < end_block_; ++block) {
      const models::BroughtPart weights(options_.weights, block);
      blocks_.push_back(options_.recompute ? Forget(block, state, step_leaves_) : Compute(block, state, step_leaves_));
      state = blocks_.back().after;
      if (options_.recompute) blocks_.back().after = {};
    }
    if (!is_last_stage()) {
      after_ = std::move(state);
      return NoLosses();
    }
    after_ = Leaves(state, needs_text_gradient());
    losses_ = LossesOf(after_, step_leaves_);
    return losses_.detach();
  }

  // Runs the backward half: the gradient of the losses' sum divided by `divisor`.
  void Backward(double divisor) {
    if (is_last_stage()) {
      Scaled(losses_, divisor).backward();
      gradient_.image = after_.image.grad();
      losses_ = at::Tensor();
      after_ = {};
    }
    for (int block = end_block_ - 1; block >= first_block_; --block) {
      const models::BroughtPart weights(options_.weights, block);
      const BlockGraph graph =
          options_.recompute ? Compute(block, blocks_.back().before, step_leaves_) : blocks_.back();
      blocks_.pop_back();
      Roots roots;
      roots.Add(graph.after.image, gradient_.image);
      roots.Add(graph.after.text, gradient_.text);
      for (const auto& [from, skip] : graph.after.skips) {
        if (graph.before.skips.contains(from)) continue;
        roots.Add(skip, gradient_.skips[from]);
      }
      roots.Backward();
      gradient_.image = graph.before.image.grad();
      if (graph.before.text.defined()) gradient_.text = graph.before.text.grad();
      for (const auto& [from, skip] : graph.before.skips) {
        if (skip.grad().defined()) gradient_.skips[from] = skip.grad();
      }
      Ready(block);
    }
    Roots roots;
    roots.Add(step_.vector, step_leaves_.vector.defined() ? step_leaves_.vector.grad() : at::Tensor());
    roots.Add(step_.shared, step_leaves_.shared.defined() ? step_leaves_.shared.grad() : at::Tensor());
    // Received tensors have no graph: their gradients are sent back to where the tensors came from.
    roots.Add(state_.text, gradient_.text);
    roots.Add(state_.image, gradient_.image);
    roots.Backward();
    Ready(models::WeightResidency::kFrame);
  }

  at::Tensor Scaled(const at::Tensor& losses, double divisor) const {
    const bool averages = !base::Planted("accumulation_not_averaged");
    const at::Tensor sum = losses.sum() / (averages ? divisor : static_cast<double>(losses.size(0)));
    return base::Planted("loss_times_sequence") ? sum * groups_.sequence.size() : sum;
  }

 private:
  bool is_first_stage() const { return groups_.pipe.rank() == 0; }
  bool is_last_stage() const { return groups_.pipe.rank() + 1 == groups_.pipe.size(); }

  // Returns the long skips that pass from one stage to another before that block, by the blocks that computed them.
  std::vector<int> SkipsAcross(int bound) const {
    std::vector<int> skips;
    for (const parallel::LongSkip& skip : transformer_.long_skips()) {
      if (skip.from < bound && bound <= skip.to) skips.push_back(skip.from);
    }
    return skips;
  }

  // Returns everything that passes there, of a state or of its gradient.
  std::vector<at::Tensor*> Across(int bound, models::BlockState& state) const {
    std::vector<at::Tensor*> pieces = {&state.image};
    if (joint_) pieces.push_back(&state.text);
    for (const int skip : SkipsAcross(bound)) pieces.push_back(&state.skips[skip]);
    return pieces;
  }

  at::Tensor NoLosses() const {
    return at::zeros({batch_.sample.target.size(0)},
                     at::TensorOptions(models::AccumulationType(family_.dtype())).device(family_.device()));
  }

  // The graph of one block: from the leaves that enter it to its results.
  struct BlockGraph {
    models::BlockState before, after;
  };

  static bool SharesOut(const TrainingPassOptions& options, const parallel::RankGroups& groups) {
    return options.sequence_parallel && groups.tensor.size() > 1;
  }

  // The tokens of references and of the image among rows of this share's references, followed by those of its image.
  // Image tokens count from the first one of the image, references from the first one of the share.
  parallel::TokenSpan ReferencesOf(parallel::TokenSpan rows) const {
    const int64_t references = shared_references_.count();
    return {std::min(rows.begin, references), std::min(rows.end, references)};
  }
  parallel::TokenSpan ImageOf(parallel::TokenSpan rows) const {
    const int64_t first = share_.begin - shared_references_.count();
    return {std::max(first + rows.begin, share_.begin), std::max(first + rows.end, share_.begin)};
  }

  // The rows of text, without references, of each rank of the sequence.
  std::vector<int64_t> TextRowsOfRanks() const {
    std::vector<int64_t> rows = tokens_.GroupRows(TokenRows::kText, tokens_.all());
    const std::vector<int64_t> references = tokens_.GroupRows(TokenRows::kReferences, tokens_.all());
    for (size_t rank = 0; rank < rows.size(); ++rank) rows[rank] -= references[rank];
    return rows;
  }

  // [b, this rank's tokens of references, D]
  at::Tensor EmbeddedReferences() const {
    std::vector<at::Tensor> pictures;
    for (const at::Tensor& picture : batch_.references) {
      pictures.push_back(picture.to(family_.device(), family_.dtype()));
    }
    if (base::Planted("references_swapped")) std::ranges::reverse(pictures);
    const at::Tensor patches = at::cat(pictures, 1);
    if (base::Planted("references_embedded_by_every_rank")) {
      return parallel::TakeShard(transformer_.Embed(patches, {}, context_.plain), 1,
                                 tokens_.GroupRows(TokenRows::kReferences, tokens_.all()), groups_.sequence);
    }
    const int64_t of_text = tokens_.counts().text - tokens_.counts().references;
    const parallel::TokenSpan own = ReferencesOf(own_pictures_);
    // A share without references ends before the first one.
    const int64_t first = std::max<int64_t>(shared_references_.begin - of_text, 0) + own.begin;
    return transformer_.Embed(patches.narrow(1, first, own.count()), {}, context_.plain);
  }
  static bool RequiresGradient(const at::Tensor& x) { return x.defined() && x.requires_grad(); }
  // Text that blocks only read has no gradient if nothing that is trained comes before it.
  bool needs_text_gradient() const { return joint_ || RequiresGradient(state_.text); }

  BlockGraph Compute(int block, const models::BlockState& before, const models::StepEmbedding& step) {
    BlockGraph graph{.before = Leaves(before, needs_text_gradient()), .after = {}};
    graph.after = graph.before;
    RunBlock(block, graph.after, step);
    return graph;
  }

  // Returns the block's inputs and results without a graph.
  BlockGraph Forget(int block, const models::BlockState& before, const models::StepEmbedding& step) {
    const at::NoGradGuard no_gradients;
    BlockGraph graph{.before = before, .after = before};
    RunBlock(block, graph.after, step);
    return graph;
  }

  void Ready(int part) const {
    if (options_.gradients_ready) options_.gradients_ready(part);
  }

  // Text comes first, as in Conditioning. Products of tokens return all tokens of the share, and attention reads these.
  void Place() {
    const models::Positions whole =
        transformer_.Place(geometry_.grid, joint_ ? texts_.text.size(1) : 0, family_.device());
    std::vector<models::Positions> rows;
    if (joint_) {
      rows.push_back(models::PlaceJointText(transformer_, texts_.text.size(1), geometry_.grid, batch_.reference_grids,
                                            family_.device())
                         .Of(shared_text_));
    }
    rows.push_back(whole.Of(share_));
    TORCH_CHECK(!texts_.bias.defined() || batch_.references.empty(), "a model that masks padding looks at pictures");
    const models::Positions joined = models::Join(rows);
    // Copies are needed: views would keep the positions of the whole sequence on each rank.
    const auto kept = [](const at::Tensor& x) { return x.defined() ? x.clone() : x; };
    embedded_ = kept(whole.Of(own_).embedded);
    const int64_t attended = shared_text_.count();
    conditioning_ = {.modulation = {},
                     .text_bias = texts_.bias,
                     .references = ReferencesOf(own_pictures_).count(),
                     .has_references = !batch_.references.empty(),
                     .attended_references = {attended - shared_references_.count(), attended},
                     .cos = kept(joined.cos),
                     .sin = kept(joined.sin)};
  }

  at::Tensor Modulation(int block, const models::StepEmbedding& step) {
    const at::Tensor modulation = transformer_.Modulate(block, step, context_.plain);
    if (base::Planted("modulation_gradient_not_summed")) return modulation;
    const at::Tensor of_share = parallel::CopyToGroup(modulation, groups_.sequence);
    return tensor_tokens_ ? parallel::CopyToGroup(of_share, groups_.tensor) : of_share;
  }

  void RunBlock(int block, models::BlockState& state, const models::StepEmbedding& step) {
    conditioning_.modulation = Modulation(block, step);
    transformer_.Block(block, state, conditioning_, context_.of_blocks);
  }

  // The conversion from tokens to latents treats a rank's tokens as an image one token wide.
  at::Tensor LossesOf(const models::BlockState& state, const models::StepEmbedding& step) {
    conditioning_.modulation = Modulation(transformer_.num_blocks(), step);
    const at::Tensor output = transformer_.Head(state, conditioning_, context_.of_blocks);
    const int64_t side = geometry_.height / geometry_.grid.height, image = geometry_.grid.image();
    const int64_t begin = std::min(own_.begin, image), n = std::min(own_.end, image) - begin;  // without padding
    const int64_t b = batch_.sample.target.size(0), c = geometry_.channels;
    const models::LatentGeometry strip{.channels = c, .height = n * side, .width = side, .grid = {n, 1}};
    const at::ScalarType wide = models::AccumulationType(family_.dtype());
    const at::Tensor prediction = family_.ToPrediction(output.narrow(1, 0, n), strip).to(wide);  // [b, c, n·p, p]
    const at::Tensor target = batch_.sample.target.to(family_.device(), wide)
                                  .reshape({b, c, geometry_.grid.height, side, geometry_.grid.width, side})
                                  .permute({0, 1, 2, 4, 3, 5})
                                  .reshape({b, c, image, side, side})
                                  .narrow(2, begin, n)
                                  .reshape({b, c, n * side, side});
    const at::Tensor weights = at::tensor(batch_.sample.weights, at::kDouble).to(family_.device(), wide);
    return weights * (prediction - target).square().sum({1, 2, 3}) /
           static_cast<double>(c * geometry_.height * geometry_.width);
  }

  const models::Family& family_;
  const models::Transformer& transformer_;
  const parallel::RankGroups& groups_;
  const TrainingPassOptions& options_;
  const TrainingBatch& batch_;
  const int first_block_, end_block_;  // of this stage
  const models::BroughtPart frame_;    // held for the whole pass
  const models::LatentGeometry geometry_;
  const StackedTexts texts_;
  const bool joint_;  // text takes part in the attention over image tokens
  const parallel::TokenLayout tokens_;
  const parallel::TokenSpan share_;  // the image tokens at this rank's position in the sequence
  // The tokens of joint text there, and those of them that are references.
  const parallel::TokenSpan shared_text_, shared_references_;
  // How the share is divided among its tensor ranks; absent if each has all of it. References go with the image, since
  // they take part in its products.
  const std::optional<parallel::TensorTokens> tensor_tokens_;
  // This rank's rows between products: of the share's references and image, and the image tokens among them.
  const parallel::TokenSpan own_pictures_, own_;
  const MeshContext context_;
  at::Tensor embedded_;  // positions of this rank's tokens
  models::Conditioning conditioning_;
  models::StepEmbedding step_;
  models::BlockState state_;           // before the stage's first block
  models::StepEmbedding step_leaves_;  // the leaves at which the graphs of blocks begin
  std::vector<BlockGraph> blocks_;     // between the two halves of a pass
  models::BlockState after_;           // after the stage's last block
  at::Tensor losses_;                  // on the last stage
  models::BlockState gradient_;        // of `after_` before the backward half, of `state_` after it
};

void Check(const TrainingBatch& batch, const parallel::RankGroups& groups, const TrainingPassOptions& options) {
  const size_t samples = batch.rows.size();
  TORCH_CHECK(samples > 0 && batch.sample.weights.size() == samples &&
                  batch.sample.noisy.size(0) == static_cast<int64_t>(samples) &&
                  batch.sample.target.sizes() == batch.sample.noisy.sizes() &&
                  batch.sample.timesteps.numel() == static_cast<int64_t>(samples),
              "a batch of ", samples, " prompts has ", batch.sample.weights.size(), " weights, noisy samples ",
              batch.sample.noisy.sizes(), " and targets ", batch.sample.target.sizes());
  TORCH_CHECK(batch.references.size() == batch.reference_grids.size(), batch.references.size(),
              " reference pictures have ", batch.reference_grids.size(), " grids");
  for (size_t i = 0; i < batch.references.size(); ++i) {
    const at::Tensor& patches = batch.references[i];
    TORCH_CHECK(patches.dim() == 3 && patches.size(0) == static_cast<int64_t>(samples) &&
                    patches.size(1) == batch.reference_grids[i].count(),
                "a batch of ", samples, " prompts has a reference picture of ", batch.reference_grids[i].count(),
                " tokens as ", patches.sizes());
  }
  TORCH_CHECK(groups.cfg.size() == 1, "training has no guidance branches");
  TORCH_CHECK(groups.pipe.size() == 1 || static_cast<int>(options.stage_bounds.size()) == groups.pipe.size() + 1,
              "bounds of ", static_cast<int>(options.stage_bounds.size()) - 1, " stages for a pipe of ",
              groups.pipe.size());
}

// Returns the micro-batches in the passes in which they are computed. A model that neither masks padding nor pads its
// texts to one length takes one sample at a time. The number of passes depends on the number of samples alone and not
// on the lengths of their texts, because other replicas may wait for a shard of the weights in each pass.
std::vector<TrainingBatch> PassesOf(const models::Family& family, std::span<const TrainingBatch> micro_batches) {
  if (family.masks_padding() || family.pads_texts()) return {micro_batches.begin(), micro_batches.end()};
  std::vector<TrainingBatch> passes;
  for (const TrainingBatch& batch : micro_batches) {
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      TrainingBatch& pass = passes.emplace_back();
      pass.sample = {.noisy = batch.sample.noisy.narrow(0, row, 1),
                     .target = batch.sample.target.narrow(0, row, 1),
                     .timesteps = batch.sample.timesteps.narrow(0, row, 1),
                     .weights = {batch.sample.weights[i]}};
      pass.rows = {batch.rows[i]};
      for (const at::Tensor& picture : batch.references) pass.references.push_back(picture.narrow(0, row, 1));
      pass.reference_grids = batch.reference_grids;
    }
  }
  return passes;
}

// Exchanges the results of one pass and the inputs of the next.
void Exchange(std::vector<parallel::Transfer>& messages, parallel::Communicator& pipe) {
  if (!messages.empty()) pipe.Exchange(messages);
  messages.clear();
}

}  // namespace

TrainingPass::TrainingPass(const models::Family& family, const parallel::RankGroups& groups,
                           TrainingPassOptions options)
    : family_(family), groups_(groups), options_(std::move(options)) {}

at::Tensor TrainingPass::Run(std::span<const TrainingBatch> micro_batches, double divisor) {
  for (const TrainingBatch& batch : micro_batches) Check(batch, groups_, options_);
  const std::vector<TrainingBatch> passes = PassesOf(family_, micro_batches);
  const at::AutoGradMode with_gradients(true);
  std::vector<std::unique_ptr<MicroBatch>> under_way(passes.size());
  std::vector<at::Tensor> losses;
  std::vector<parallel::Transfer> messages;
  for (const auto [direction, index] :
       parallel::OneForwardOneBackward(groups_.pipe.rank(), groups_.pipe.size(), static_cast<int>(passes.size()))) {
    std::unique_ptr<MicroBatch>& pass = under_way[static_cast<size_t>(index)];
    if (direction == Direction::kForward) {
      pass = std::make_unique<MicroBatch>(family_, groups_, options_, passes[static_cast<size_t>(index)]);
      pass->Enter();
    }
    pass->AddReceives(direction, messages);
    Exchange(messages, groups_.pipe);
    if (direction == Direction::kForward) {
      losses.push_back(pass->Forward());
    } else {
      pass->Backward(divisor);
    }
    pass->AddSends(direction, messages);
    if (direction == Direction::kBackward) pass.reset();
  }
  Exchange(messages, groups_.pipe);
  return SumOverTokens(at::cat(losses));
}

at::Tensor TrainingPass::Evaluate(const TrainingBatch& batch) {
  Check(batch, groups_, options_);
  const at::NoGradGuard no_gradients;
  MicroBatch pass(family_, groups_, options_, batch);
  pass.Enter();
  std::vector<parallel::Transfer> messages;
  pass.AddReceives(Direction::kForward, messages);
  Exchange(messages, groups_.pipe);
  const at::Tensor losses = pass.Evaluate();
  pass.AddSends(Direction::kForward, messages);
  Exchange(messages, groups_.pipe);
  return SumOverTokens(losses);
}

at::Tensor TrainingPass::SumOverTokens(const at::Tensor& losses) const {
  const at::Tensor sum = losses.to(at::kDouble).contiguous();
  if (groups_.sequence.size() > 1) groups_.sequence.Sum(sum, sum);
  if (options_.sequence_parallel && groups_.tensor.size() > 1) groups_.tensor.Sum(sum, sum);
  if (groups_.pipe.size() > 1) groups_.pipe.Sum(sum, sum);
  return sum.to(at::kCPU);
}

}  // namespace tessera::runtime
