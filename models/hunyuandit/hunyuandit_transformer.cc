#include "models/hunyuandit/hunyuandit_transformer.h"

#include <cmath>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/hunyuandit/image_sizes.h"
#include "models/layers/folded_input.h"
#include "models/layers/heads.h"
#include "models/layers/rotary.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, t text tokens of both encoders, D width, h heads (of this rank), d
// head_dim.

namespace tessera::models {
namespace {

constexpr int64_t kSinusoidChannels = 256;
constexpr int64_t kPoolHeads = 8;
constexpr int64_t kSizeCount = 6;
constexpr int64_t kRopeBasePixels = 512;  // side of the square that positions were trained on; a latent is 8 pixels
constexpr double kNormEps = 1e-6;

// Returns `count` coordinates spread evenly from `begin` towards `end`, excluding `end`.
at::Tensor Coordinates(int64_t count, int64_t begin, int64_t end) {
  const double n = static_cast<double>(count);
  return at::linspace(static_cast<double>(begin), static_cast<double>(end) * (n - 1) / n, count, at::kDouble);
}

// [b, t, width] → [b, 1, width]. Each image is computed separately, as a product whose sum has a fixed order.
at::Tensor MeanOfTokens(const at::Tensor& x) {
  const at::Tensor wide = x.to(AccumulationType(x.scalar_type()));
  const at::Tensor ones = at::ones({1, x.size(1)}, wide.options());
  std::vector<at::Tensor> means;
  for (const at::Tensor& image : wide.unbind(0)) {
    means.push_back(kernels::LinearProduct(ones, image.transpose(0, 1), std::nullopt) / x.size(1));
  }
  return at::stack(means).to(x.scalar_type());
}

}  // namespace

struct HunyuanTransformer::Norm {
  Norm(const ParamScope& scope, int64_t width)
      : weight(scope.Add("weight", {width})), bias(scope.Add("bias", {width})) {}

  at::Tensor Forward(const at::Tensor& x) const { return at::layer_norm(x, {x.size(-1)}, weight, bias, kNormEps); }
  // Returns x + y and its norm, the input of `product`.
  std::tuple<at::Tensor, ProductInput> OfSum(const Linear& product, const at::Tensor& x, const at::Tensor& y,
                                             const parallel::ForwardContext& context) const {
    return ResidualNormFor(product, x, y, weight, bias, kNormEps, context);
  }
  kernels::HeadNorm OfHeads() const { return {.weight = weight, .bias = bias, .eps = kNormEps}; }

  at::Tensor weight, bias;
};

// Attention of the image to itself.
struct HunyuanTransformer::SelfAttention {
  SelfAttention(const ParamScope& scope, const HunyuanConfig& config)
      : qkv(scope, config.width(), {{"to_q", config.width()}, {"to_k", config.width()}, {"to_v", config.width()}},
            kColumn),
        norm_q(scope.OfHeads() / "norm_q", config.head_dim),
        norm_k(scope.OfHeads() / "norm_k", config.head_dim),
        out(scope / "to_out.0", config.width(), config.width(), kRow) {}

  Linear qkv;
  Norm norm_q, norm_k;
  Linear out;
};

// Attention of the image to the text.
struct HunyuanTransformer::CrossAttention {
  CrossAttention(const ParamScope& scope, const HunyuanConfig& config)
      : q(scope / "to_q", config.width(), config.width(), kColumn),
        kv(scope, config.bert_width, {{"to_k", config.width()}, {"to_v", config.width()}},
           {.role = LinearRole::kColumn, .tokens = std::nullopt}),
        norm_q(scope.OfHeads() / "norm_q", config.head_dim),
        norm_k(scope.OfHeads() / "norm_k", config.head_dim),
        out(scope / "to_out.0", config.width(), config.width(), kRow) {}

  // Only queries are rotated: text has no position in the image.
  at::Tensor Forward(const ProductInput& x, const at::Tensor& text, const kernels::RotaryTables& rotary,
                     int64_t head_dim, const parallel::ForwardContext& context) const {
    const std::vector<at::Tensor> parts = kv.Forward(text, context).chunk(2, -1);
    const at::Tensor read =
        kernels::Attention(kernels::HeadsNormRope(q.Forward(x, context), head_dim, norm_q.OfHeads(), rotary),
                           kernels::HeadsNormRope(parts[0], head_dim, norm_k.OfHeads(), {}),
                           SplitHeads(parts[1], head_dim), std::nullopt, 1 / std::sqrt(static_cast<double>(head_dim)));
    return out.Forward(read.flatten(2), context);
  }

  Linear q, kv;
  Norm norm_q, norm_k;
  Linear out;
};

struct HunyuanTransformer::BlockLayers {
  BlockLayers(const ParamScope& scope, const HunyuanConfig& config, bool reads_skip)
      : norm1_weight((scope / "norm1.norm").Add("weight", {config.width()})),
        norm1_bias((scope.OfConditioning() / "norm1.norm").Add("bias", {config.width()})),
        shift(scope.OfConditioning() / "norm1.linear", config.width(), config.width()),
        self(scope / "attn1", config),
        norm2(scope / "norm2", config.width()),
        cross(scope / "attn2", config),
        norm3(scope / "norm3", config.width()),
        mlp_in(scope / "ff.net.0.proj", config.width(), config.hidden, kColumn),
        mlp_out(scope / "ff.net.2", config.hidden, config.width(), kRow) {
    if (reads_skip) {
      skip_norm.emplace(scope / "skip_norm", 2 * config.width());
      skip_linear.emplace(scope / "skip_linear", 2 * config.width(), config.width());
    }
  }

  at::Tensor norm1_weight, norm1_bias;
  Linear shift;
  SelfAttention self;
  Norm norm2;
  CrossAttention cross;
  Norm norm3;
  Linear mlp_in, mlp_out;
  std::optional<Norm> skip_norm;
  std::optional<Linear> skip_linear;
};

HunyuanTransformer::HunyuanTransformer(const HunyuanConfig& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      patch_embed_(ParamScope(table) / "pos_embed.proj", config.channels, config.patch, config.width()),
      t5_embedder_(ParamScope(table).OfConditioning() / "text_embedder", config.t5_width, 4 * config.t5_width,
                   config.bert_width),
      timestep_embedder_(ParamScope(table).OfConditioning() / "time_extra_emb.timestep_embedder", kSinusoidChannels,
                         config.width()),
      extra_embedder_(
          ParamScope(table).OfConditioning() / "time_extra_emb.extra_embedder",
          config.pooled_width + (config.style_and_size ? kSizeCount * kSinusoidChannels + config.width() : int64_t{0}),
          4 * config.width(), config.width()),
      text_padding_(ParamScope(table).OfConditioning().Add("text_embedding_padding",
                                                           {config.bert_tokens + config.t5_tokens, config.bert_width})),
      pool_positions_((ParamScope(table).OfConditioning() / "time_extra_emb.pooler")
                          .Add("positional_embedding", {config.t5_tokens + 1, config.t5_width})),
      pool_q_(ParamScope(table).OfConditioning() / "time_extra_emb.pooler.q_proj", config.t5_width, config.t5_width),
      pool_kv_(ParamScope(table).OfConditioning() / "time_extra_emb.pooler", config.t5_width,
               {{"k_proj", config.t5_width}, {"v_proj", config.t5_width}}),
      pool_out_(ParamScope(table).OfConditioning() / "time_extra_emb.pooler.c_proj", config.t5_width,
                config.pooled_width),
      output_modulation_(ParamScope(table).OfConditioning() / "norm_out.linear", config.width(), 2 * config.width()),
      output_projection_(ParamScope(table) / "proj_out", config.width(),
                         config.patch * config.patch * config.out_channels) {
  const ParamScope root(table);
  if (config.style_and_size)
    styles_ = (root.OfConditioning() / "time_extra_emb.style_embedder").Add("weight", {1, config.width()});
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(i);
    blocks_.emplace_back(root / "blocks" / i, config, /*reads_skip=*/i > config.layers / 2);
  }
  table.LeaveBlock();
}

HunyuanTransformer::~HunyuanTransformer() = default;

std::vector<parallel::LongSkip> HunyuanTransformer::long_skips() const { return config_.long_skips(); }

at::Tensor HunyuanTransformer::PoolText(const at::Tensor& t5, const parallel::ForwardContext& context) const {
  const at::Tensor rows = at::cat({MeanOfTokens(t5), t5}, 1) + pool_positions_;  // [b, t + 1, width]
  const int64_t head_dim = config_.t5_width / kPoolHeads;
  const std::vector<at::Tensor> kv = pool_kv_.Forward(rows, context).chunk(2, -1);
  const at::Tensor read = kernels::Attention(SplitHeads(pool_q_.Forward(rows.narrow(1, 0, 1), context), head_dim),
                                             SplitHeads(kv[0], head_dim), SplitHeads(kv[1], head_dim), std::nullopt,
                                             1 / std::sqrt(static_cast<double>(head_dim)));
  return pool_out_.Forward(read.flatten(2), context).squeeze(1);
}

int64_t HunyuanTransformer::output_features() const { return config_.patch * config_.patch * config_.out_channels; }

// The first half of a head's channels encodes the column, the second the row.
Positions HunyuanTransformer::Place(TokenGrid grid, int64_t, at::Device device) const {
  const int64_t base = kRopeBasePixels / 8 / config_.patch, half = config_.head_dim / 2;
  const HunyuanRopeRegion region = HunyuanRopeRegionFor(grid.height, grid.width, base);
  at::Tensor columns =
      RepeatOverRows(RotaryAngles(Coordinates(grid.width, region.left, region.right), half), grid.height);
  at::Tensor rows =
      RepeatOverColumns(RotaryAngles(Coordinates(grid.height, region.top, region.bottom), half), grid.width);
  if (base::Planted("hunyuan_rope_axes")) std::swap(columns, rows);
  return RotaryPositions(at::cat({columns, rows}, 1), AccumulationType(dtype_), device);
}

at::Tensor HunyuanTransformer::SinusoidOf(const at::Tensor& values) const {
  const at::ScalarType accumulation = AccumulationType(dtype_);
  return Sinusoid(values.to(accumulation), accumulation, kSinusoidChannels).to(dtype_);
}

PromptState HunyuanTransformer::Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                                     const parallel::ForwardContext& context) const {
  const int64_t b = text.size(0);
  const at::Tensor t5 = extras[kT5].to(dtype_);
  at::Tensor extra = PoolText(t5, context);  // [b, pooled width]
  if (config_.style_and_size) {
    const at::Tensor sizes = SinusoidOf(extras[kSizes].flatten()).reshape({b, -1});  // [b, 6 · 256]
    extra = at::cat({extra, sizes, styles_.expand({b, -1})}, 1);
  }
  at::Tensor both = at::cat({text.to(dtype_), t5_embedder_.Forward(t5, context)}, 1);  // [b, t, cross_attention_dim]
  const at::Tensor mask = at::cat({extras[kBertMask], extras[kT5Mask]}, 1).unsqueeze(-1) != 0;
  if (!base::Planted("hunyuan_padding_kept")) both = at::where(mask, both, text_padding_);
  return {.text = both, .vector = extra_embedder_.Forward(extra, context)};
}

StepEmbedding HunyuanTransformer::EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                            const parallel::ForwardContext& context) const {
  const at::Tensor sum = timestep_embedder_.Forward(SinusoidOf(timesteps), context) + prompt;  // [rows, D]
  return {.vector = sum, .shared = kernels::Silu(sum)};
}

at::Tensor HunyuanTransformer::Modulate(int index, const StepEmbedding& step,
                                        const parallel::ForwardContext& context) const {
  if (index == num_blocks()) return output_modulation_.Forward(step.shared, context);
  // The shift is added to the norm's bias.
  const BlockLayers& layers = blocks_[static_cast<size_t>(index)];
  return layers.shift.Forward(step.shared, context) + layers.norm1_bias;
}

at::Tensor HunyuanTransformer::Embed(const at::Tensor& patches, const at::Tensor&,
                                     const parallel::ForwardContext&) const {
  return patch_embed_.Forward(patches);
}

void HunyuanTransformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                               const parallel::ForwardContext& context) const {
  const BlockLayers& layers = blocks_[static_cast<size_t>(index)];
  at::Tensor& x = state.image;
  if (layers.skip_linear) {
    const auto kept = state.skips.find(num_blocks() - 1 - index);
    TORCH_CHECK(kept != state.skips.end(), "block ", index, " was not given its skip");
    const bool reversed = base::Planted("hunyuan_skip_order");
    const at::Tensor joined = at::cat({reversed ? kept->second : x, reversed ? x : kept->second}, -1);  // [b, n, 2 D]
    x = layers.skip_linear->Forward(layers.skip_norm->Forward(joined), context);
    state.skips.erase(kept);
  }

  const kernels::RotaryTables rotary{.cos = conditioning.cos, .sin = conditioning.sin};
  const ProductInput y =
      LayerNormShiftFor(layers.self.qkv, x, layers.norm1_weight, conditioning.modulation, kNormEps, context);
  const at::Tensor attended =
      context.attention.Attend(index, {.projections = {{.packed = layers.self.qkv.Forward(y, context),
                                                        .query_norm = layers.self.norm_q.OfHeads(),
                                                        .key_norm = layers.self.norm_k.OfHeads(),
                                                        .rotary = rotary}},
                                       .head_dim = config_.head_dim,
                                       .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim))});
  const auto [seen, normalised] =
      layers.norm2.OfSum(layers.cross.q, x, layers.self.out.Forward(attended.flatten(2), context), context);
  const at::Tensor of_text = layers.cross.Forward(normalised, state.text, rotary, config_.head_dim, context);
  const auto [read, normalised_read] = layers.norm3.OfSum(layers.mlp_in, seen, of_text, context);
  x = read + GeluTanhMlp(layers.mlp_in, layers.mlp_out, normalised_read, context);
  if (index < num_blocks() / 2 - 1) state.skips[index] = x;
}

at::Tensor HunyuanTransformer::Head(const BlockState& state, const Conditioning& conditioning,
                                    const parallel::ForwardContext& context) const {
  // In this norm scale comes before shift.
  const std::vector<at::Tensor> m = conditioning.modulation.chunk(2, -1);
  return output_projection_.Forward(kernels::LayerNormModulate(state.image, m[1], m[0], kNormEps), context);
}

}  // namespace tessera::models
