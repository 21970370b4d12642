#include "models/sd3/sd3_transformer.h"

#include <cmath>
#include <span>

#include "kernels/ops.h"
#include "models/layers/folded_input.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, t text tokens, D width, h heads (of this rank), d head_dim.

namespace tessera::models {
namespace {

constexpr int64_t kSinusoidChannels = 256;
constexpr double kNormEps = 1e-6;
constexpr parallel::TokenRows kImage = parallel::TokenRows::kImage, kText = parallel::TokenRows::kText;

LinearOptions Column(parallel::TokenRows tokens) { return {.role = LinearRole::kColumn, .tokens = tokens}; }
LinearOptions Row(parallel::TokenRows tokens) { return {.role = LinearRole::kRow, .tokens = tokens}; }

}  // namespace

// Queries, keys and values of one stream.
struct Sd3Transformer::Projection {
  struct Names {
    parallel::TokenRows tokens;
    const char *q, *k, *v, *norm_q, *norm_k;
  };
  static constexpr Names kOfImage{kImage, "to_q", "to_k", "to_v", "norm_q", "norm_k"};
  static constexpr Names kOfText{kText, "add_q_proj", "add_k_proj", "add_v_proj", "norm_added_q", "norm_added_k"};

  Projection(const ParamScope& scope, const Names& names, const Sd3Config& config)
      : qkv(scope, config.width(), {{names.q, config.width()}, {names.k, config.width()}, {names.v, config.width()}},
            Column(names.tokens)) {
    if (config.qk_norm) {
      norm_q = (scope.OfHeads() / names.norm_q).Add("weight", {config.head_dim});
      norm_k = (scope.OfHeads() / names.norm_k).Add("weight", {config.head_dim});
    }
  }

  parallel::Projection Forward(const ProductInput& x, const parallel::ForwardContext& context) const {
    return {.packed = qkv.Forward(x, context),
            .query_norm = {.weight = norm_q, .bias = {}, .eps = kNormEps},
            .key_norm = {.weight = norm_k, .bias = {}, .eps = kNormEps},
            .rotary = {}};
  }

  // Returns only keys and values.
  parallel::Projection ForwardKeys(const ProductInput& x, const parallel::ForwardContext& context) const {
    parallel::Projection result = Forward(x, context);
    const int64_t inner = result.packed.size(-1) / 3;
    result.packed = result.packed.narrow(-1, inner, 2 * inner);
    result.with_queries = false;
    return result;
  }

  Linear qkv;
  at::Tensor norm_q, norm_k;  // [d], or undefined
};

struct Sd3Transformer::Mlp {
  Mlp(const ParamScope& scope, int64_t width, parallel::TokenRows tokens)
      : in(scope / "net.0.proj", width, 4 * width, Column(tokens)),
        out(scope / "net.2", 4 * width, width, Row(tokens)) {}

  // Adds the gated result `read` of an attention, and then this MLP, to x. m: shift, scale and gate, each [b, D].
  at::Tensor Forward(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& read, std::span<const at::Tensor> m,
                     const parallel::ForwardContext& context) const {
    const auto [sum, normalised] = GatedResidualNormModulateFor(in, x, gate, read, m[0], m[1], kNormEps, context);
    return kernels::GatedResidual(sum, m[2], GeluTanhMlp(in, out, normalised, context));
  }

  Linear in, out;
};

struct Sd3Transformer::JointBlock {
  JointBlock(const ParamScope& scope, const Sd3Config& config, bool is_last, bool has_dual)
      : modulation(scope.OfConditioning() / "norm1.linear", config.width(), (has_dual ? 9 : 6) * config.width()),
        text_modulation(scope.OfConditioning() / "norm1_context.linear", config.width(),
                        (is_last ? 2 : 6) * config.width()),
        image(scope / "attn", Projection::kOfImage, config),
        text(scope / "attn", Projection::kOfText, config),
        out(scope / "attn.to_out.0", config.width(), config.width(), Row(kImage)),
        mlp(scope / "ff", config.width(), kImage) {
    if (has_dual) {
      dual.emplace(scope / "attn2", Projection::kOfImage, config);
      dual_out.emplace(scope / "attn2.to_out.0", config.width(), config.width(), Row(kImage));
    }
    if (!is_last) {
      text_out.emplace(scope / "attn.to_add_out", config.width(), config.width(), Row(kText));
      text_mlp.emplace(scope / "ff_context", config.width(), kText);
    }
  }

  Linear modulation, text_modulation;
  Projection image, text;
  Linear out;
  std::optional<Linear> text_out;  // absent in the last block, whose text is only read by its attention
  Mlp mlp;
  std::optional<Mlp> text_mlp;
  std::optional<Projection> dual;
  std::optional<Linear> dual_out;
};

Sd3Transformer::Sd3Transformer(const Sd3Config& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      patch_embed_(ParamScope(table) / "pos_embed.proj", config.channels, config.patch, config.width()),
      positions_(table.Add({.name = "pos_embed.pos_embed",
                            .shape = {1, config.position_side * config.position_side, config.width()},
                            .buffer = true})),
      timestep_embedder_(ParamScope(table).OfConditioning() / "time_text_embed.timestep_embedder", kSinusoidChannels,
                         config.width()),
      pooled_embedder_(ParamScope(table).OfConditioning() / "time_text_embed.text_embedder", config.pooled_width,
                       config.width()),
      text_in_(ParamScope(table).OfConditioning() / "context_embedder", config.text_width, config.width()),
      output_modulation_(ParamScope(table).OfConditioning() / "norm_out.linear", config.width(), 2 * config.width()),
      output_projection_(ParamScope(table) / "proj_out", config.width(),
                         config.patch * config.patch * config.channels) {
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(i);
    blocks_.emplace_back(ParamScope(table) / "transformer_blocks" / i, config, i + 1 == config.layers,
                         config.dual_layers.contains(i));
  }
  table.LeaveBlock();
}

Sd3Transformer::~Sd3Transformer() = default;

int64_t Sd3Transformer::output_features() const { return config_.patch * config_.patch * config_.channels; }

// Rows of the centred crop of the table.
Positions Sd3Transformer::Place(TokenGrid grid, int64_t, at::Device) const {
  const int64_t side = config_.position_side;
  const at::Tensor crop = positions_.view({side, side, config_.width()})
                              .narrow(0, (side - grid.height) / 2, grid.height)
                              .narrow(1, (side - grid.width) / 2, grid.width);
  return {.embedded = crop.reshape({grid.count(), config_.width()}), .cos = {}, .sin = {}};
}

PromptState Sd3Transformer::Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                                 const parallel::ForwardContext& context) const {
  return {.text = text_in_.Forward(text.to(dtype_), context),
          .vector = pooled_embedder_.Forward(extras[0].to(dtype_), context)};  // [b, D]
}

StepEmbedding Sd3Transformer::EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                        const parallel::ForwardContext& context) const {
  const at::ScalarType accumulation = AccumulationType(dtype_);
  const at::Tensor sinusoid = Sinusoid(timesteps.to(accumulation), accumulation, kSinusoidChannels).to(dtype_);
  const at::Tensor sum = timestep_embedder_.Forward(sinusoid, context) + prompt;  // [rows, D]
  return {.vector = sum, .shared = kernels::Silu(sum)};
}

at::Tensor Sd3Transformer::Modulate(int index, const StepEmbedding& step,
                                    const parallel::ForwardContext& context) const {
  if (index == num_blocks()) return output_modulation_.Forward(step.shared, context);
  const JointBlock& block = blocks_[static_cast<size_t>(index)];
  return at::cat({block.modulation.Forward(step.shared, context), block.text_modulation.Forward(step.shared, context)},
                 -1);
}

at::Tensor Sd3Transformer::Embed(const at::Tensor& patches, const at::Tensor& positions,
                                 const parallel::ForwardContext&) const {
  return patch_embed_.Forward(patches) + positions;
}

void Sd3Transformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                           const parallel::ForwardContext& context) const {
  const JointBlock& block = blocks_[static_cast<size_t>(index)];
  const double scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  at::Tensor& x = state.image;
  at::Tensor& y = state.text;

  // The image's: shift, scale and gate of the attention, then of the MLP, then of the second attention. The text's: the
  // same for its one attention; in the last block scale and shift, in this order.
  const std::vector<at::Tensor> both = conditioning.modulation.split(config_.width(), -1);
  const std::span<const at::Tensor> m(both.begin(), block.dual ? 9 : 6),
      mt(both.begin() + (block.dual ? 9 : 6), both.end());
  const ProductInput normalised_text = LayerNormModulateFor(block.text.qkv, y, mt[block.text_out ? 0 : 1],
                                                            mt[block.text_out ? 1 : 0], kNormEps, context);
  const ProductInput normalised_image = LayerNormModulateFor(block.image.qkv, x, m[0], m[1], kNormEps, context);

  // Image tokens first. The attention's result for the text of the last block would not be used.
  const parallel::Projection image = block.image.Forward(normalised_image, context);
  const parallel::Projection text =
      block.text_out ? block.text.Forward(normalised_text, context) : block.text.ForwardKeys(normalised_text, context);
  const int64_t n = image.packed.size(1), t = text.packed.size(1);
  const at::Tensor attended = context.attention
                                  .Attend(2 * index, {.projections = {image, text},
                                                      .head_dim = config_.head_dim,
                                                      .scale = scale,
                                                      .queries = block.text_out ? parallel::TokenRows::kImageThenText
                                                                                : parallel::TokenRows::kImage,
                                                      .keys = parallel::TokenRows::kImageThenText})
                                  .flatten(2);
  // Both attentions read the same normalised tokens, each with a different shift and scale.
  at::Tensor second;
  if (block.dual) {
    const ProductInput normalised = LayerNormModulateFor(block.dual->qkv, x, m[6], m[7], kNormEps, context);
    second = context.attention
                 .Attend(2 * index + 1, {.projections = {block.dual->Forward(normalised, context)},
                                         .head_dim = config_.head_dim,
                                         .scale = scale})
                 .flatten(2);
  }
  at::Tensor read = block.out.Forward(attended.narrow(1, 0, n), context);
  if (block.dual) {
    x = kernels::GatedResidual(x, m[2], read);
    read = block.dual_out->Forward(second, context);
  }
  x = block.mlp.Forward(x, m[block.dual ? 8 : 2], read, m.subspan(3, 3), context);
  if (!block.text_out) return;
  y = block.text_mlp->Forward(y, mt[2], block.text_out->Forward(attended.narrow(1, n, t), context), mt.subspan(3, 3),
                              context);
}

at::Tensor Sd3Transformer::Head(const BlockState& state, const Conditioning& conditioning,
                                const parallel::ForwardContext& context) const {
  // In this norm scale comes before shift.
  const std::vector<at::Tensor> m = conditioning.modulation.chunk(2, -1);
  return output_projection_.Forward(kernels::LayerNormModulate(state.image, m[1], m[0], kNormEps), context);
}

}  // namespace tessera::models
