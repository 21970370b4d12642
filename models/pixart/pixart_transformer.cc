#include "models/pixart/pixart_transformer.h"

#include <cmath>

#include "kernels/ops.h"
#include "models/layers/folded_input.h"
#include "models/layers/heads.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, t text tokens, D width, h heads (of this rank), d head_dim.

namespace tessera::models {
namespace {

constexpr int64_t kSinusoidChannels = 256;

}  // namespace

struct PixArtTransformer::BlockLayers {
  BlockLayers(const ParamScope& scope, int64_t width)
      : table(scope.OfConditioning().Add("scale_shift_table", {6, width})),
        self_qkv(scope / "attn1", width, {{"to_q", width}, {"to_k", width}, {"to_v", width}},
                 {.role = LinearRole::kColumn}),
        self_out(scope / "attn1" / "to_out" / 0, width, width, {.role = LinearRole::kRow}),
        cross_q(scope / "attn2" / "to_q", width, width, {.role = LinearRole::kColumn}),
        cross_kv(scope / "attn2", width, {{"to_k", width}, {"to_v", width}},
                 {.role = LinearRole::kColumn, .tokens = std::nullopt}),
        cross_out(scope / "attn2" / "to_out" / 0, width, width, {.role = LinearRole::kRow}),
        mlp_in(scope / "ff" / "net" / 0 / "proj", width, 4 * width, {.role = LinearRole::kColumn}),
        mlp_out(scope / "ff" / "net" / 2, 4 * width, width, {.role = LinearRole::kRow}) {}

  at::Tensor table;  // [6, D]: shift, scale and gate of the attention, then of the MLP
  Linear self_qkv, self_out, cross_q, cross_kv, cross_out, mlp_in, mlp_out;
};

PixArtTransformer::PixArtTransformer(const PixArtConfig& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      patch_embed_(ParamScope(table) / "pos_embed.proj", config.in_channels, config.patch, config.width()),
      timestep_embedder_(ParamScope(table).OfConditioning() / "adaln_single.emb.timestep_embedder", kSinusoidChannels,
                         config.width()),
      modulation_(ParamScope(table).OfConditioning() / "adaln_single.linear", config.width(), 6 * config.width()),
      caption_first_(ParamScope(table).OfConditioning() / "caption_projection.linear_1", config.caption_channels,
                     config.width()),
      caption_second_(ParamScope(table).OfConditioning() / "caption_projection.linear_2", config.width(),
                      config.width()),
      output_table_(ParamScope(table).OfConditioning().Add("scale_shift_table", {2, config.width()})),
      output_projection_(ParamScope(table) / "proj_out", config.width(),
                         config.patch * config.patch * config.out_channels) {
  if (config.additional_conditions) {
    const ParamScope scope = ParamScope(table).OfConditioning() / "adaln_single.emb";
    resolution_embedder_ =
        std::make_unique<EmbeddingMlp>(scope / "resolution_embedder", kSinusoidChannels, config.width() / 3);
    aspect_ratio_embedder_ =
        std::make_unique<EmbeddingMlp>(scope / "aspect_ratio_embedder", kSinusoidChannels, config.width() / 3);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(i);
    blocks_.emplace_back(ParamScope(table) / "transformer_blocks" / i, config.width());
  }
  table.LeaveBlock();
  table.IgnoreInFile("caption_projection.y_embedding");  // the trained null caption of early PixArt-alpha files
}

PixArtTransformer::~PixArtTransformer() = default;

int64_t PixArtTransformer::output_features() const { return config_.patch * config_.patch * config_.out_channels; }

Positions PixArtTransformer::Place(TokenGrid grid, int64_t, at::Device device) const {
  const int64_t base = config_.sample_size / config_.patch;  // tokens along a side that positions are scaled to
  return {.embedded = SinCosTable(grid, config_.width(), static_cast<double>(base), config_.interpolation_scale,
                                  AccumulationType(dtype_), device),
          .cos = {},
          .sin = {}};
}

PromptState PixArtTransformer::Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                                    const parallel::ForwardContext& context) const {
  PromptState prompt{
      .text = caption_second_.Forward(caption_first_.ForwardGeluTanh(text, context), context),  // [b, t, D]
      .vector = {}};
  if (config_.additional_conditions) {
    const auto sinusoid = [&](const at::Tensor& values) {
      return Sinusoid(values, AccumulationType(dtype_), kSinusoidChannels).to(dtype_);
    };
    const at::Tensor pixels = extras[0].narrow(1, 0, 2).flatten();  // height and width of each sample
    const at::Tensor resolution =
        resolution_embedder_->Forward(sinusoid(pixels), context).reshape({extras[0].size(0), -1});
    prompt.vector =
        at::cat({resolution, aspect_ratio_embedder_->Forward(sinusoid(extras[0].select(1, 2)), context)}, 1);
  }
  return prompt;
}

StepEmbedding PixArtTransformer::EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                           const parallel::ForwardContext& context) const {
  const at::Tensor sinusoid = Sinusoid(timesteps, AccumulationType(dtype_), kSinusoidChannels).to(dtype_);
  at::Tensor sum = timestep_embedder_.Forward(sinusoid, context);  // [rows, D]
  if (prompt.defined()) sum = sum + prompt;
  return {.vector = sum,
          .shared = modulation_.Forward(kernels::Silu(sum), context).reshape({sum.size(0), 6, config_.width()})};
}

at::Tensor PixArtTransformer::Modulate(int index, const StepEmbedding& step, const parallel::ForwardContext&) const {
  // The head reads the embedding directly, without SiLU.
  return index == num_blocks() ? output_table_ + step.vector.unsqueeze(1)
                               : blocks_[static_cast<size_t>(index)].table + step.shared;
}

at::Tensor PixArtTransformer::Embed(const at::Tensor& patches, const at::Tensor& positions,
                                    const parallel::ForwardContext&) const {
  return (patch_embed_.Forward(patches) + positions).to(dtype_);
}

void PixArtTransformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                              const parallel::ForwardContext& context) const {
  const BlockLayers& layers = blocks_[index];
  const double attention_scale = 1 / std::sqrt(static_cast<double>(config_.head_dim));
  const std::vector<at::Tensor> m = conditioning.modulation.unbind(1);  // six tensors [b, D]
  at::Tensor& x = state.image;

  const ProductInput normalised = LayerNormModulateFor(layers.self_qkv, x, m[0], m[1], config_.norm_eps, context);
  const at::Tensor attended =
      context.attention.Attend(index, {.projections = {{.packed = layers.self_qkv.Forward(normalised, context)}},
                                       .head_dim = config_.head_dim,
                                       .scale = attention_scale});
  x = kernels::GatedResidual(x, m[2], layers.self_out.Forward(attended.flatten(2), context));

  // The query is not normalised: the reference has no norm before the cross-attention.
  const std::vector<at::Tensor> kv = layers.cross_kv.Forward(state.text, context).chunk(2, -1);
  const std::optional<at::Tensor> bias =
      conditioning.text_bias.defined() ? std::optional(conditioning.text_bias) : std::nullopt;
  const at::Tensor read = kernels::Attention(SplitHeads(layers.cross_q.Forward(x, context), config_.head_dim),
                                             SplitHeads(kv[0], config_.head_dim), SplitHeads(kv[1], config_.head_dim),
                                             bias, attention_scale);
  const auto [sum, normalised_sum] =
      GatedResidualNormModulateFor(layers.mlp_in, x, std::nullopt, layers.cross_out.Forward(read.flatten(2), context),
                                   m[3], m[4], config_.norm_eps, context);
  x = kernels::GatedResidual(sum, m[5], GeluTanhMlp(layers.mlp_in, layers.mlp_out, normalised_sum, context));
}

at::Tensor PixArtTransformer::Head(const BlockState& state, const Conditioning& conditioning,
                                   const parallel::ForwardContext& context) const {
  const std::vector<at::Tensor> m = conditioning.modulation.unbind(1);
  return output_projection_.Forward(kernels::LayerNormModulate(state.image, m[0], m[1], 1e-6), context);
}

}  // namespace tessera::models
