#include "models/dit/dit_transformer.h"

#include <cmath>

#include "kernels/ops.h"
#include "models/layers/folded_input.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, D width, h heads (of this rank), d head_dim.

namespace tessera::models {
namespace {

constexpr int64_t kSinusoidChannels = 256;
constexpr double kSinusoidShift = 1;  // so that the last frequency is exactly 1/10000
constexpr double kNormEps = 1e-6;

}  // namespace

// Embeds timestep and class as one vector.
struct DitTransformer::Embedder {
  Embedder(const ParamScope& scope, const DitConfig& config)
      : timestep(scope / "timestep_embedder", kSinusoidChannels, config.width()),
        classes((scope / "class_embedder.embedding_table").Add("weight", {config.classes + 1, config.width()})) {}

  // Returns [rows, D].
  at::Tensor Forward(const StepEmbedding& step, const parallel::ForwardContext& context) const {
    return timestep.Forward(step.vector, context) + at::embedding(classes, step.shared);
  }

  EmbeddingMlp timestep;
  at::Tensor classes;  // [classes + 1, D]
};

struct DitTransformer::BlockLayers {
  BlockLayers(const ParamScope& scope, const DitConfig& config)
      : modulation(scope.OfConditioning() / "norm1.linear", config.width(), 6 * config.width()),
        qkv(scope / "attn1", config.width(),
            {{"to_q", config.width()}, {"to_k", config.width()}, {"to_v", config.width()}}, kColumn),
        out(scope / "attn1.to_out.0", config.width(), config.width(), kRow),
        mlp_in(scope / "ff.net.0.proj", config.width(), 4 * config.width(), kColumn),
        mlp_out(scope / "ff.net.2", 4 * config.width(), config.width(), kRow) {}

  Linear modulation, qkv, out, mlp_in, mlp_out;
};

DitTransformer::DitTransformer(const DitConfig& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      patch_embed_(ParamScope(table) / "pos_embed.proj", config.in_channels, config.patch, config.width()),
      output_modulation_(ParamScope(table).OfConditioning() / "proj_out_1", config.width(), 2 * config.width()),
      output_projection_(ParamScope(table) / "proj_out_2", config.width(),
                         config.patch * config.patch * config.out_channels) {
  for (int64_t i = 0; i < config.layers; ++i) {
    const ParamScope scope = ParamScope(table) / "transformer_blocks" / i;
    // The head reads the embedding of block 0, so every rank has it.
    if (i > 0) table.EnterBlock(i);
    embedders_.emplace_back(scope.OfConditioning() / "norm1.emb", config);
    table.EnterBlock(i);
    blocks_.emplace_back(scope, config);
  }
  table.LeaveBlock();
}

DitTransformer::~DitTransformer() = default;

int64_t DitTransformer::output_features() const { return config_.patch * config_.patch * config_.out_channels; }

Positions DitTransformer::Place(TokenGrid grid, int64_t, at::Device device) const {
  const int64_t base = config_.sample_size / config_.patch;  // tokens along a side that positions are scaled to
  return {.embedded = SinCosTable(grid, config_.width(), static_cast<double>(base), /*scale=*/1,
                                  AccumulationType(dtype_), device),
          .cos = {},
          .sin = {}};
}

PromptState DitTransformer::Read(const at::Tensor&, const std::vector<at::Tensor>& extras,
                                 const parallel::ForwardContext&) const {
  return {.text = {}, .vector = extras[0]};
}

// vector: the timestep's sinusoids [rows, 256]; shared: the class [rows] or [1].
StepEmbedding DitTransformer::EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                        const parallel::ForwardContext&) const {
  const at::ScalarType accumulation = AccumulationType(dtype_);
  return {.vector = Sinusoid(timesteps.to(accumulation), accumulation, kSinusoidChannels, kSinusoidShift).to(dtype_),
          .shared = prompt};
}

at::Tensor DitTransformer::BlockEmbedding(int index, const StepEmbedding& step,
                                          const parallel::ForwardContext& context) const {
  return embedders_[static_cast<size_t>(index)].Forward(step, context);
}

at::Tensor DitTransformer::Modulate(int index, const StepEmbedding& step,
                                    const parallel::ForwardContext& context) const {
  const bool head = index == num_blocks();  // the head reads the embedding of block 0
  return (head ? output_modulation_ : blocks_[static_cast<size_t>(index)].modulation)
      .Forward(kernels::Silu(BlockEmbedding(head ? 0 : index, step, context)), context);
}

at::Tensor DitTransformer::Embed(const at::Tensor& patches, const at::Tensor& positions,
                                 const parallel::ForwardContext&) const {
  return (patch_embed_.Forward(patches) + positions).to(dtype_);
}

void DitTransformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                           const parallel::ForwardContext& context) const {
  const BlockLayers& layers = blocks_[static_cast<size_t>(index)];
  at::Tensor& x = state.image;
  // Shift, scale and gate of the attention, then of the MLP: six tensors [b, D].
  const std::vector<at::Tensor> m = conditioning.modulation.chunk(6, -1);
  const ProductInput normalised = LayerNormModulateFor(layers.qkv, x, m[0], m[1], kNormEps, context);
  const at::Tensor attended =
      context.attention.Attend(index, {.projections = {{.packed = layers.qkv.Forward(normalised, context)}},
                                       .head_dim = config_.head_dim,
                                       .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim))});
  const auto [sum, normalised_sum] = GatedResidualNormModulateFor(
      layers.mlp_in, x, m[2], layers.out.Forward(attended.flatten(2), context), m[3], m[4], config_.norm_eps, context);
  x = kernels::GatedResidual(sum, m[5], GeluTanhMlp(layers.mlp_in, layers.mlp_out, normalised_sum, context));
}

at::Tensor DitTransformer::Head(const BlockState& state, const Conditioning& conditioning,
                                const parallel::ForwardContext& context) const {
  const std::vector<at::Tensor> m = conditioning.modulation.chunk(2, -1);  // shift, scale
  return output_projection_.Forward(kernels::LayerNormModulate(state.image, m[0], m[1], kNormEps), context);
}

}  // namespace tessera::models
