#include "models/text_encoders/t5_encoder.h"

#include <algorithm>
#include <cmath>

#include "kernels/ops.h"
#include "models/precision.h"

namespace tessera::models {
namespace {

constexpr LinearOptions kColumnWithoutBias{.role = LinearRole::kColumn, .bias = false};
constexpr LinearOptions kRowWithoutBias{.role = LinearRole::kRow, .bias = false};
// Buckets are computed for texts of at least this many tokens: longer texts are rare.
constexpr int64_t kUsualTokens = 512;

}  // namespace

T5Encoder::Block::Block(const ParamScope& scope, const T5Config& config)
    : attention_norm((scope / "layer.0.layer_norm").Add("weight", {config.width})),
      mlp_norm((scope / "layer.1.layer_norm").Add("weight", {config.width})),
      qkv(scope / "layer.0.SelfAttention", config.width,
          {{"q", config.heads * config.head_dim},
           {"k", config.heads * config.head_dim},
           {"v", config.heads * config.head_dim}},
          kColumnWithoutBias),
      out(scope / "layer.0.SelfAttention.o", config.heads * config.head_dim, config.width, kRowWithoutBias),
      gate_and_value(scope / "layer.1.DenseReluDense", config.width, {{"wi_0", config.hidden}, {"wi_1", config.hidden}},
                     kColumnWithoutBias),
      mlp_out(scope / "layer.1.DenseReluDense.wo", config.hidden, config.width, kRowWithoutBias) {}

T5Encoder::T5Encoder(const T5Config& config, ParamTable& table)
    : config_(config),
      embedding_(table, "shared.weight", config.vocabulary, config.width, {"encoder.embed_tokens.weight"}),
      position_bias_(table.Add({.name = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                                .shape = {config.buckets, config.heads}})),
      final_norm_(table.Add({.name = "encoder.final_layer_norm.weight", .shape = {config.width}})) {
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(i);
    blocks_.emplace_back(ParamScope(table) / "encoder.block" / i, config);
    table.LeaveBlock();
  }
}

at::Tensor T5Encoder::BucketsOf(int64_t tokens) const {
  // Half of the buckets is for each direction; within a direction, half of them are exact distances and the others
  // logarithmic. Computed in fp32 like the reference, so that distances at a bucket's edge fall on the same side.
  const int64_t half = config_.buckets / 2, exact = half / 2;
  const at::Tensor relative = at::arange(-tokens, tokens + 1, at::kLong);  // key − query
  const at::Tensor distance = relative.abs();
  const double log_range = std::log(static_cast<double>(config_.max_distance) / static_cast<double>(exact));
  const at::Tensor logarithmic =
      exact + (at::log(distance.clamp_min(1).to(at::kFloat) / exact) / log_range * (half - exact)).to(at::kLong);
  const at::Tensor of_distance = at::where(distance < exact, distance, logarithmic.clamp_max(half - 1));
  return (relative > 0).to(at::kLong) * half + of_distance;
}

at::Tensor T5Encoder::PositionBias(int64_t tokens) const {
  if (!buckets_.defined() || buckets_.size(0) / 2 < tokens) {
    buckets_ = BucketsOf(std::max(tokens, kUsualTokens)).to(position_bias_.device());
  }
  // Window i of the distances contains those of the query tokens − 1 − i to all keys.
  const int64_t zero = buckets_.size(0) / 2;
  const at::Tensor bucket = buckets_.narrow(0, zero - tokens + 1, 2 * tokens - 1).unfold(0, tokens, 1).flip(0);
  return position_bias_.index_select(0, bucket.flatten()).reshape({tokens, tokens, -1}).permute({2, 0, 1}).unsqueeze(0);
}

EncodedTokens T5Encoder::Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const {
  const BroughtPart frame(input.weights, WeightResidency::kFrame);
  SelectedStates states(input.states, config_.layers);
  at::Tensor x = embedding_.Forward(input.ids);  // [b, t, d_model]
  const at::ScalarType accumulation = AccumulationType(x.scalar_type());
  at::Tensor bias = PositionBias(input.ids.size(1)).to(accumulation);
  if (input.mask.defined()) bias = bias + PaddingBias(input.mask, accumulation);
  for (int64_t i = 0; i < config_.layers; ++i) {
    const BroughtPart weights(input.weights, static_cast<int>(i));
    const Block& block = blocks_[static_cast<size_t>(i)];
    states.Add(i, x);
    const std::vector<at::Tensor> qkv =
        block.qkv.Forward(kernels::RmsNorm(x, block.attention_norm, config_.norm_eps), context).chunk(3, -1);
    // T5 does not scale its attention scores.
    const at::Tensor read = TextAttention(qkv[0], qkv[1], qkv[2], {.head_dim = config_.head_dim, .bias = bias});
    x = x + block.out.Forward(read, context);

    const std::vector<at::Tensor> parts =
        block.gate_and_value.Forward(kernels::RmsNorm(x, block.mlp_norm, config_.norm_eps), context).chunk(2, -1);
    x = x + block.mlp_out.Forward(kernels::GegluTanh(parts[0], parts[1]), context);
  }
  states.Add(config_.layers, kernels::RmsNorm(x, final_norm_, config_.norm_eps));
  return {.hidden = states.Joined()};
}

TextEncoderConfig ReadT5Encoder(base::ConfigReader& reader) {
  const T5Config config = ParseT5Config(reader);
  return {.vocabulary = config.vocabulary,
          .width = config.width,
          .layers = config.layers,
          .make = [config](ParamTable& table) { return std::make_unique<T5Encoder>(config, table); }};
}

}  // namespace tessera::models
