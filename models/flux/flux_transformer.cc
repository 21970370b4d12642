#include "models/flux/flux_transformer.h"

#include <cmath>

#include "base/planted.h"
#include "kernels/ops.h"
#include "models/layers/heads.h"
#include "models/layers/rotary.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, t text tokens, D width, h heads (of this rank), d head_dim.

namespace tessera::models {
namespace {

constexpr int64_t kSinusoidChannels = 256;
constexpr double kNormEps = 1e-6;
constexpr LinearOptions kColumn{.role = LinearRole::kColumn};
constexpr LinearOptions kRow{.role = LinearRole::kRow};

}  // namespace

// One stream of a double block: the image's or the text's own weights.
struct FluxTransformer::Stream {
  struct Names {
    const char *norm, *q, *k, *v, *norm_q, *norm_k, *out, *mlp;
  };
  static constexpr Names kImage{"norm1", "to_q", "to_k", "to_v", "norm_q", "norm_k", "to_out.0", "ff"};
  static constexpr Names kText{"norm1_context", "add_q_proj",   "add_k_proj", "add_v_proj",
                               "norm_added_q",  "norm_added_k", "to_add_out", "ff_context"};

  Stream(const ParamScope& scope, const Names& names, const FluxConfig& config)
      : modulation(scope / names.norm / "linear", config.width(), 6 * config.width()),
        qkv(scope / "attn", config.width(),
            {{names.q, config.width()}, {names.k, config.width()}, {names.v, config.width()}}, kColumn),
        norm_q((scope / "attn" / names.norm_q).Add("weight", {config.head_dim})),
        norm_k((scope / "attn" / names.norm_k).Add("weight", {config.head_dim})),
        out(scope / "attn" / names.out, config.width(), config.width(), kRow),
        mlp_in(scope / names.mlp / "net.0.proj", config.width(), 4 * config.width(), kColumn),
        mlp_out(scope / names.mlp / "net.2", 4 * config.width(), config.width(), kRow) {}

  // Shift, scale, gate of the attention, then of the MLP: six times [b, D].
  std::vector<at::Tensor> Modulation(const at::Tensor& activated, const parallel::ForwardContext& context) const {
    return modulation.Forward(activated, context).chunk(6, -1);
  }

  // Normalised queries and keys and the values, each [b, tokens, h, d].
  parallel::Qkv Project(const at::Tensor& x, const std::vector<at::Tensor>& m, int64_t head_dim,
                        const parallel::ForwardContext& context) const {
    const std::vector<at::Tensor> parts =
        qkv.Forward(kernels::LayerNormModulate(x, m[0], m[1], kNormEps), context).chunk(3, -1);
    return {.q = kernels::RmsNorm(SplitHeads(parts[0], head_dim), norm_q, kNormEps),
            .k = kernels::RmsNorm(SplitHeads(parts[1], head_dim), norm_k, kNormEps),
            .v = SplitHeads(parts[2], head_dim)};
  }

  // x after the attention's result for its own tokens and after the MLP.
  at::Tensor Finish(at::Tensor x, const at::Tensor& attended, const std::vector<at::Tensor>& m,
                    const parallel::ForwardContext& context) const {
    x = kernels::GatedResidual(x, m[2], out.Forward(attended, context));
    const at::Tensor hidden = mlp_in.ForwardGeluTanh(kernels::LayerNormModulate(x, m[3], m[4], kNormEps), context);
    return kernels::GatedResidual(x, m[5], mlp_out.Forward(hidden, context));
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
      : modulation(scope / "norm.linear", config.width(), 3 * config.width()),
        qkv_mlp(scope, config.width(),
                {{"attn.to_q", config.width()},
                 {"attn.to_k", config.width()},
                 {"attn.to_v", config.width()},
                 {"proj_mlp", 4 * config.width()}},
                kColumn),
        norm_q((scope / "attn.norm_q").Add("weight", {config.head_dim})),
        norm_k((scope / "attn.norm_k").Add("weight", {config.head_dim})),
        out(scope / "proj_out", 5 * config.width(), config.width(),
            {.role = LinearRole::kRow, .in_parts = {config.width(), 4 * config.width()}}) {}

  Linear modulation, qkv_mlp;
  at::Tensor norm_q, norm_k;  // [d]
  Linear out;                 // of [attention, MLP]
};

FluxTransformer::FluxTransformer(const FluxConfig& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      image_in_(ParamScope(table) / "x_embedder", config.channels, config.width()),
      text_in_(ParamScope(table) / "context_embedder", config.text_width, config.width()),
      timestep_embedder_(ParamScope(table) / "time_text_embed.timestep_embedder", kSinusoidChannels, config.width()),
      pooled_embedder_(ParamScope(table) / "time_text_embed.text_embedder", config.pooled_width, config.width()),
      output_modulation_(ParamScope(table) / "norm_out.linear", config.width(), 2 * config.width()),
      output_projection_(ParamScope(table) / "proj_out", config.width(), config.channels) {
  const ParamScope root(table);
  if (config.guidance) {
    guidance_embedder_.emplace(root / "time_text_embed.guidance_embedder", kSinusoidChannels, config.width());
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

Conditioning FluxTransformer::Condition(const TransformerInput& input, const parallel::ForwardContext& context) const {
  const at::ScalarType accumulation = AccumulationType(dtype_);
  // The reference divides the timestep by 1000 and multiplies it again, rounding twice; the guidance scale once.
  const auto sinusoid = [&](const at::Tensor& thousandths) {
    return Sinusoid(thousandths.to(accumulation) * 1000, accumulation, kSinusoidChannels).to(dtype_);
  };
  Conditioning conditioning;
  conditioning.embedding = timestep_embedder_.Forward(sinusoid(input.timestep / 1000), context) +
                           pooled_embedder_.Forward(input.extras[0].to(dtype_), context);  // [b, D]
  if (guidance_embedder_) {
    const at::Tensor guidance = base::Planted("flux_guidance_thousand") ? input.extras[1] / 1000 : input.extras[1];
    conditioning.embedding = conditioning.embedding + guidance_embedder_->Forward(sinusoid(guidance), context);
  }
  conditioning.modulation = kernels::Silu(conditioning.embedding);

  // Every text token is at (0, 0, 0), image tokens at (0, row, column). Text comes first.
  const at::TensorOptions fp64(at::kDouble);
  const int64_t t = input.text.size(1);
  const auto axis = [&](int64_t positions, int64_t index) {
    return RotaryAngles(at::arange(positions, fp64), config_.axes[index]);
  };
  const at::Tensor first = at::zeros({input.grid.count(), config_.axes[0] / 2}, fp64);
  at::Tensor rows = RepeatOverColumns(axis(input.grid.height, 1), input.grid.width);
  at::Tensor columns = RepeatOverRows(axis(input.grid.width, 2), input.grid.height);
  if (base::Planted("flux_rope_axes")) std::swap(rows, columns);
  const at::Tensor image = at::cat({first, rows, columns}, 1).slice(0, input.span.begin, input.span.end);
  const at::Tensor angles = at::cat({at::zeros({t, config_.head_dim / 2}, fp64), image});  // [t + n, d/2]
  conditioning.cos = kernels::Cos(angles).to(input.patches.device(), accumulation);
  conditioning.sin = kernels::Sin(angles).to(input.patches.device(), accumulation);
  return conditioning;
}

BlockState FluxTransformer::Embed(const TransformerInput& input, const parallel::ForwardContext& context) const {
  return {.image = image_in_.Forward(input.patches, context),
          .text = text_in_.Forward(input.text.to(dtype_), context),
          .skips = {}};
}

void FluxTransformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                            const parallel::ForwardContext& context) const {
  const double scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  const int64_t t = state.text.size(1), n = state.image.size(1);
  const auto attend = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return context.attention
        .Attend(index, {.q = Rotate(q, conditioning.cos, conditioning.sin),
                        .k = Rotate(k, conditioning.cos, conditioning.sin),
                        .v = v,
                        .scale = scale,
                        .queries = parallel::TokenRows::kTextThenImage,
                        .keys = parallel::TokenRows::kTextThenImage})
        .flatten(2);  // [b, t + n, h·d]
  };
  if (index < config_.double_blocks) {
    const DoubleBlock& block = double_blocks_[static_cast<size_t>(index)];
    const std::vector<at::Tensor> of_image = block.image.Modulation(conditioning.modulation, context);
    const std::vector<at::Tensor> of_text = block.text.Modulation(conditioning.modulation, context);
    const parallel::Qkv image = block.image.Project(state.image, of_image, config_.head_dim, context);
    const parallel::Qkv text = block.text.Project(state.text, of_text, config_.head_dim, context);
    const at::Tensor attended =
        attend(at::cat({text.q, image.q}, 1), at::cat({text.k, image.k}, 1), at::cat({text.v, image.v}, 1));
    const bool text_first = !base::Planted("flux_text_image_order");
    state.image = block.image.Finish(state.image, attended.narrow(1, text_first ? t : 0, n), of_image, context);
    state.text = block.text.Finish(state.text, attended.narrow(1, text_first ? 0 : n, t), of_text, context);
    return;
  }
  const SingleBlock& block = single_blocks_[static_cast<size_t>(index - config_.double_blocks)];
  const std::vector<at::Tensor> m = block.modulation.Forward(conditioning.modulation, context).chunk(3, -1);
  const at::Tensor x = at::cat({state.text, state.image}, 1);  // [b, t + n, D]
  const at::Tensor projected = block.qkv_mlp.Forward(kernels::LayerNormModulate(x, m[0], m[1], kNormEps), context);
  const int64_t inner = projected.size(-1) / 7;  // h·d
  const auto part = [&](int64_t i) { return SplitHeads(projected.narrow(-1, i * inner, inner), config_.head_dim); };
  const at::Tensor attended = attend(kernels::RmsNorm(part(0), block.norm_q, kNormEps),
                                     kernels::RmsNorm(part(1), block.norm_k, kNormEps), part(2));
  const at::Tensor hidden = kernels::GeluTanh(projected.narrow(-1, 3 * inner, 4 * inner));
  const at::Tensor y = kernels::GatedResidual(x, m[2], block.out.Forward(at::cat({attended, hidden}, -1), context));
  state.text = y.narrow(1, 0, t);
  state.image = y.narrow(1, t, n);
}

at::Tensor FluxTransformer::Head(const BlockState& state, const Conditioning& conditioning,
                                 const parallel::ForwardContext& context) const {
  // Scale comes before shift here.
  std::vector<at::Tensor> m = output_modulation_.Forward(conditioning.modulation, context).chunk(2, -1);
  if (base::Planted("flux_scale_shift")) std::swap(m[0], m[1]);
  return output_projection_.Forward(kernels::LayerNormModulate(state.image, m[1], m[0], kNormEps), context);
}

}  // namespace tessera::models
