#include "models/text_encoders/bert_encoder.h"

#include <cmath>

#include "kernels/ops.h"
#include "models/precision.h"

namespace tessera::models {
// Early files call a norm's weight and bias gamma and beta.
BertEncoder::Norm::Norm(const ParamScope& scope, int64_t width)
    : weight(scope.table().Add({.name = scope.Name("weight"), .shape = {width}, .aliases = {scope.Name("gamma")}})),
      bias(scope.table().Add({.name = scope.Name("bias"), .shape = {width}, .aliases = {scope.Name("beta")}})) {}

BertEncoder::Layer::Layer(const ParamScope& scope, const BertConfig& config)
    : qkv(scope / "attention.self", config.width,
          {{"query", config.width}, {"key", config.width}, {"value", config.width}}, kColumn),
      out(scope / "attention.output.dense", config.width, config.width, kRow),
      attention_norm(scope / "attention.output.LayerNorm", config.width),
      mlp_in(scope / "intermediate.dense", config.width, config.hidden, kColumn),
      mlp_out(scope / "output.dense", config.hidden, config.width, kRow),
      mlp_norm(scope / "output.LayerNorm", config.width) {}

BertEncoder::BertEncoder(const BertConfig& config, ParamTable& table)
    : config_(config),
      words_(ParamScope(table).Add("embeddings.word_embeddings.weight", {config.vocabulary, config.width})),
      positions_(ParamScope(table).Add("embeddings.position_embeddings.weight", {config.positions, config.width})),
      types_(ParamScope(table).Add("embeddings.token_type_embeddings.weight", {config.token_types, config.width})),
      embedding_norm_(ParamScope(table) / "embeddings.LayerNorm", config.width) {
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(i);
    layers_.emplace_back(ParamScope(table) / "encoder.layer" / i, config);
    table.LeaveBlock();
  }
  for (const char* unused : {"embeddings.position_ids", "pooler.dense.weight", "pooler.dense.bias"}) {
    table.IgnoreInFile(unused);
  }
}

at::Tensor BertEncoder::Normalise(const at::Tensor& x, const Norm& norm) const {
  return at::layer_norm(x, {config_.width}, norm.weight, norm.bias, config_.norm_eps);
}

EncodedTokens BertEncoder::Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const {
  const BroughtPart frame(input.weights, WeightResidency::kFrame);
  SelectedStates states(input.states, config_.layers);
  const int64_t t = input.ids.size(1), head_dim = config_.width / config_.heads;
  at::Tensor x = at::embedding(words_, input.ids) + positions_.narrow(0, 0, t) + types_[0];  // [b, t, width]
  x = Normalise(x, embedding_norm_);
  TextAttentionOptions attention{.head_dim = head_dim, .scale = 1 / std::sqrt(static_cast<double>(head_dim))};
  if (input.mask.defined()) attention.bias = PaddingBias(input.mask, AccumulationType(x.scalar_type()));
  for (int64_t i = 0; i < config_.layers; ++i) {
    const BroughtPart weights(input.weights, static_cast<int>(i));
    const Layer& layer = layers_[static_cast<size_t>(i)];
    states.Add(i, x);
    const std::vector<at::Tensor> qkv = layer.qkv.Forward(x, context).chunk(3, -1);
    const at::Tensor read = TextAttention(qkv[0], qkv[1], qkv[2], attention);
    x = Normalise(x + layer.out.Forward(read, context), layer.attention_norm);
    const at::Tensor hidden = kernels::Gelu(layer.mlp_in.Forward(x, context));
    x = Normalise(x + layer.mlp_out.Forward(hidden, context), layer.mlp_norm);
  }
  states.Add(config_.layers, x);
  return {.hidden = states.Joined()};
}

TextEncoderConfig ReadBertEncoder(base::ConfigReader& reader) {
  const BertConfig config = ParseBertConfig(reader);
  return {.vocabulary = config.vocabulary,
          .width = config.width,
          .layers = config.layers,
          .positions = config.positions,
          .make = [config](ParamTable& table) { return std::make_unique<BertEncoder>(config, table); }};
}

}  // namespace tessera::models
