#include "models/flux/flux_transformer.h"

#include <cmath>
#include <span>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/layers/folded_input.h"
#include "models/layers/references.h"
#include "models/layers/rotary.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, t text tokens, D width, h heads (of this rank), d head_dim.

namespace tessera::models {
namespace {

constexpr int64_t kSinusoidChannels = 256;
constexpr double kNormEps = 1e-6;

LinearOptions Column(parallel::TokenRows tokens) { return {.role = LinearRole::kColumn, .tokens = tokens}; }
LinearOptions Row(parallel::TokenRows tokens) { return {.role = LinearRole::kRow, .tokens = tokens}; }

kernels::HeadNorm RmsNormBy(const at::Tensor& weight) { return {.weight = weight, .bias = {}, .eps = kNormEps}; }

}  // namespace

// One stream of a double block: the weights of the image or of the text.
struct FluxTransformer::Stream {
  struct Names {
    parallel::TokenRows tokens;
    const char *norm, *q, *k, *v, *norm_q, *norm_k, *out, *mlp;
  };
  static constexpr Names kImage{
      parallel::TokenRows::kImage, "norm1", "to_q", "to_k", "to_v", "norm_q", "norm_k", "to_out.0", "ff"};
  static constexpr Names kText{parallel::TokenRows::kText,
                               "norm1_context",
                               "add_q_proj",
                               "add_k_proj",
                               "add_v_proj",
                               "norm_added_q",
                               "norm_added_k",
                               "to_add_out",
                               "ff_context"};

  Stream(const ParamScope& scope, const Names& names, const FluxConfig& config)
      : modulation(scope.OfConditioning() / names.norm / "linear", config.width(), 6 * config.width()),
        qkv(scope / "attn", config.width(),
            {{names.q, config.width()}, {names.k, config.width()}, {names.v, config.width()}}, Column(names.tokens)),
        norm_q((scope.OfHeads() / "attn" / names.norm_q).Add("weight", {config.head_dim})),
        norm_k((scope.OfHeads() / "attn" / names.norm_k).Add("weight", {config.head_dim})),
        out(scope / "attn" / names.out, config.width(), config.width(), Row(names.tokens)),
        mlp_in(scope / names.mlp / "net.0.proj", config.width(), 4 * config.width(), Column(names.tokens)),
        mlp_out(scope / names.mlp / "net.2", 4 * config.width(), config.width(), Row(names.tokens)) {}

  // m: shift, scale and gate of the attention, then of the MLP, each [b, D].
  parallel::Projection Project(const at::Tensor& x, std::span<const at::Tensor> m,
                               const parallel::ForwardContext& context) const {
    return {.packed = qkv.Forward(LayerNormModulateFor(qkv, x, m[0], m[1], kNormEps, context), context),
            .query_norm = RmsNormBy(norm_q),
            .key_norm = RmsNormBy(norm_k),
            .rotary = {}};
  }

  // Adds the attention's result for this stream's tokens and the MLP to x.
  at::Tensor Finish(const at::Tensor& x, const at::Tensor& attended, std::span<const at::Tensor> m,
                    const parallel::ForwardContext& context) const {
    const auto [sum, normalised] =
        GatedResidualNormModulateFor(mlp_in, x, m[2], out.Forward(attended, context), m[3], m[4], kNormEps, context);
    return kernels::GatedResidual(sum, m[5], GeluTanhMlp(mlp_in, mlp_out, normalised, context));
  }

  Linear modulation, qkv;
  at::Tensor norm_q, norm_k;  // [d]
  Linear out, mlp_in, mlp_out;
};

struct FluxTransformer::DoubleBlock {
  DoubleBlock(const ParamScope& scope, const FluxConfig& config)
      : image(scope, Stream::kImage, config), text(scope, Stream::kText, config) {}
  Stream image, text;
};

struct FluxTransformer::SingleBlock {
  SingleBlock(const ParamScope& scope, const FluxConfig& config)
      : modulation(scope.OfConditioning() / "norm.linear", config.width(), 3 * config.width()),
        qkv_mlp(scope, config.width(),
                {{"attn.to_q", config.width()},
                 {"attn.to_k", config.width()},
                 {"attn.to_v", config.width()},
                 {"proj_mlp", 4 * config.width()}},
                Column(parallel::TokenRows::kTextThenImage)),
        norm_q((scope.OfHeads() / "attn.norm_q").Add("weight", {config.head_dim})),
        norm_k((scope.OfHeads() / "attn.norm_k").Add("weight", {config.head_dim})),
        out(scope / "proj_out", 5 * config.width(), config.width(),
            {.role = LinearRole::kRow,
             .parts = {config.width(), 4 * config.width()},
             .tokens = parallel::TokenRows::kTextThenImage}) {}

  Linear modulation, qkv_mlp;
  at::Tensor norm_q, norm_k;  // [d]
  Linear out;                 // of [attention, MLP]
};

FluxTransformer::FluxTransformer(const FluxConfig& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      image_in_(ParamScope(table) / "x_embedder", config.channels + config.condition_channels, config.width()),
      text_in_(ParamScope(table).OfConditioning() / "context_embedder", config.text_width, config.width()),
      timestep_embedder_(ParamScope(table).OfConditioning() / "time_text_embed.timestep_embedder", kSinusoidChannels,
                         config.width()),
      pooled_embedder_(ParamScope(table).OfConditioning() / "time_text_embed.text_embedder", config.pooled_width,
                       config.width()),
      output_modulation_(ParamScope(table).OfConditioning() / "norm_out.linear", config.width(), 2 * config.width()),
      output_projection_(ParamScope(table) / "proj_out", config.width(), config.channels) {
  const ParamScope root(table);
  if (config.guidance) {
    guidance_embedder_.emplace(root.OfConditioning() / "time_text_embed.guidance_embedder", kSinusoidChannels,
                               config.width());
  }
  for (int64_t i = 0; i < config.double_blocks; ++i) {
    table.EnterBlock(i);
    double_blocks_.emplace_back(root / "transformer_blocks" / i, config);
  }
  for (int64_t i = 0; i < config.single_blocks; ++i) {
    table.EnterBlock(config.double_blocks + i);
    single_blocks_.emplace_back(root / "single_transformer_blocks" / i, config);
  }
  table.LeaveBlock();
}

FluxTransformer::~FluxTransformer() = default;

int64_t FluxTransformer::output_features() const { return config_.channels; }

// Every text token is at (0, 0, 0), image tokens are at (0, row, column), and those of a reference at (1, row, column).
Positions FluxTransformer::Place(TokenGrid grid, int64_t, at::Device device) const {
  return PlaceGrid(grid, /*picture=*/0, device);
}

Positions FluxTransformer::PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const {
  std::vector<Positions> pictures;
  const int64_t picture = base::Planted("references_at_the_image") ? 0 : 1;
  for (const TokenGrid& grid : grids) pictures.push_back(PlaceGrid(grid, picture, device));
  return Join(pictures);
}

Positions FluxTransformer::PlaceGrid(TokenGrid grid, int64_t picture, at::Device device) const {
  const at::TensorOptions fp64(at::kDouble);
  const auto axis = [&](int64_t positions, int64_t index) {
    return RotaryAngles(at::arange(positions, fp64), config_.axes[index]);
  };
  const at::Tensor first =
      RotaryAngles(at::full({1}, static_cast<double>(picture), fp64), config_.axes[0]).expand({grid.count(), -1});
  at::Tensor rows = RepeatOverColumns(axis(grid.height, 1), grid.width);
  at::Tensor columns = RepeatOverRows(axis(grid.width, 2), grid.height);
  if (base::Planted("flux_rope_axes")) std::swap(rows, columns);
  return RotaryPositions(at::cat({first, rows, columns}, 1), AccumulationType(dtype_), device);
}

Positions FluxTransformer::PlaceText(int64_t tokens, TokenGrid, at::Device device) const {
  return RotaryPositions(at::zeros({tokens, config_.head_dim / 2}, at::kDouble), AccumulationType(dtype_), device);
}

// The reference divides the timestep and the guidance scale by 1000 and multiplies them again, so the timestep is
// rounded twice and the scale once.
at::Tensor FluxTransformer::SinusoidOf(const at::Tensor& thousandths) const {
  const at::ScalarType accumulation = AccumulationType(dtype_);
  return Sinusoid(thousandths.to(accumulation) * 1000, accumulation, kSinusoidChannels).to(dtype_);
}

PromptState FluxTransformer::Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                                  const parallel::ForwardContext& context) const {
  std::vector<at::Tensor> parts = {pooled_embedder_.Forward(extras[0].to(dtype_), context)};  // each [b, D]
  if (guidance_embedder_) {
    const at::Tensor guidance = base::Planted("flux_guidance_thousand") ? extras[1] / 1000 : extras[1];
    parts.push_back(guidance_embedder_->Forward(SinusoidOf(guidance), context));
  }
  return {.text = text_in_.Forward(text.to(dtype_), context), .vector = at::stack(parts, 1)};
}

StepEmbedding FluxTransformer::EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                         const parallel::ForwardContext& context) const {
  // The terms are added one by one, to round like the reference.
  at::Tensor sum = timestep_embedder_.Forward(SinusoidOf(timesteps / 1000), context);
  for (const at::Tensor& part : prompt.unbind(1)) sum = sum + part;
  return {.vector = sum, .shared = kernels::Silu(sum)};
}

at::Tensor FluxTransformer::Modulate(int index, const StepEmbedding& step,
                                     const parallel::ForwardContext& context) const {
  if (index == num_blocks()) return output_modulation_.Forward(step.shared, context);
  if (index >= config_.double_blocks) {
    return single_blocks_[static_cast<size_t>(index - config_.double_blocks)].modulation.Forward(step.shared, context);
  }
  const DoubleBlock& block = double_blocks_[static_cast<size_t>(index)];
  return at::cat(
      {block.image.modulation.Forward(step.shared, context), block.text.modulation.Forward(step.shared, context)}, -1);
}

at::Tensor FluxTransformer::Embed(const at::Tensor& patches, const at::Tensor&,
                                  const parallel::ForwardContext& context) const {
  return image_in_.Forward(patches, context);
}

void FluxTransformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                            const parallel::ForwardContext& context) const {
  const auto rotary = [&](int64_t first, int64_t tokens) -> kernels::RotaryTables {
    return {.cos = conditioning.cos.narrow(0, first, tokens), .sin = conditioning.sin.narrow(0, first, tokens)};
  };
  const auto attend = [&](std::vector<parallel::Projection> projections) {
    return context.attention
        .Attend(index, {.projections = std::move(projections),
                        .head_dim = config_.head_dim,
                        .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)),
                        .queries = parallel::TokenRows::kTextThenImage,
                        .keys = parallel::TokenRows::kTextThenImage})
        .flatten(2);  // [b, tokens, h·d]
  };
  if (base::Planted("flux_clone_per_block")) state.image = state.image.clone();
  if (index < config_.double_blocks) {
    const DoubleBlock& block = double_blocks_[static_cast<size_t>(index)];
    const std::vector<at::Tensor> m = conditioning.modulation.chunk(12, -1);
    const std::span<const at::Tensor> of_image(m.begin(), 6), of_text(m.begin() + 6, 6);
    MoveReferencesToImage(conditioning.references, state);
    parallel::Projection text = block.text.Project(state.text, of_text, context),
                         image = block.image.Project(state.image, of_image, context);
    const int64_t t = text.packed.size(1), n = image.packed.size(1);
    text.rotary = rotary(0, t);
    image.rotary = rotary(t, n);
    const at::Tensor attended = attend({std::move(text), std::move(image)});
    const bool text_first = !base::Planted("flux_text_image_order");
    state.image = block.image.Finish(state.image, attended.narrow(1, text_first ? t : 0, n), of_image, context);
    state.text = block.text.Finish(state.text, attended.narrow(1, text_first ? 0 : n, t), of_text, context);
    MoveReferencesToText(conditioning.references, state);
    return;
  }
  const SingleBlock& block = single_blocks_[static_cast<size_t>(index - config_.double_blocks)];
  const std::vector<at::Tensor> m = conditioning.modulation.chunk(3, -1);
  const at::Tensor x = at::cat({state.text, state.image}, 1);  // [b, t + n, D]
  const at::Tensor projected =
      block.qkv_mlp.Forward(LayerNormModulateFor(block.qkv_mlp, x, m[0], m[1], kNormEps, context), context);
  const int64_t inner = projected.size(-1) / 7;  // h·d
  const at::Tensor attended = attend({{.packed = projected.narrow(-1, 0, 3 * inner),
                                       .query_norm = RmsNormBy(block.norm_q),
                                       .key_norm = RmsNormBy(block.norm_k),
                                       .rotary = rotary(0, projected.size(1))}});
  const at::Tensor hidden = kernels::GeluTanh(projected.narrow(-1, 3 * inner, 4 * inner));
  const at::Tensor y = kernels::GatedResidual(x, m[2], block.out.Forward(at::cat({attended, hidden}, -1), context));
  const int64_t t = state.text.size(1);
  state.text = y.narrow(1, 0, t);
  state.image = y.narrow(1, t, y.size(1) - t);
}

at::Tensor FluxTransformer::Head(const BlockState& state, const Conditioning& conditioning,
                                 const parallel::ForwardContext& context) const {
  // In this norm scale comes before shift.
  std::vector<at::Tensor> m = conditioning.modulation.chunk(2, -1);
  if (base::Planted("flux_scale_shift")) std::swap(m[0], m[1]);
  return output_projection_.Forward(kernels::LayerNormModulate(state.image, m[1], m[0], kNormEps), context);
}

}  // namespace tessera::models
