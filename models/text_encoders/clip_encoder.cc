#include "models/text_encoders/clip_encoder.h"

#include <cmath>

#include "base/macros/planted.h"
#include "kernels/ops.h"

namespace tessera::models {
namespace {

// transformers 5 saves the names without this prefix; published files have it, except for the projection.
constexpr char kPrefix[] = "text_model.";

ParamSpec Spec(const std::string& name, std::vector<int64_t> shape) {
  return {.name = kPrefix + name, .shape = std::move(shape), .aliases = {name}};
}

// The reference applies adapters only to CLIP.
TextEncoderConfig DescriptionOf(const ClipConfig& config) {
  return {.vocabulary = config.vocabulary,
          .width = config.width,
          .pooled_width = config.pooled_width(),
          .layers = config.layers,
          .positions = config.positions,
          .takes_adapters = true,
          .fills_length = true,
          .make = [config](ParamTable& table) { return std::make_unique<ClipEncoder>(config, table); }};
}

}  // namespace

ClipEncoder::Norm::Norm(const ParamScope& scope, int64_t width)
    : weight(scope.table().Add(Spec(scope.Name("weight"), {width}))),
      bias(scope.table().Add(Spec(scope.Name("bias"), {width}))) {}

ClipEncoder::Layer::Layer(const ParamScope& scope, const ClipConfig& config)
    : attention_norm(scope / "layer_norm1", config.width),
      mlp_norm(scope / "layer_norm2", config.width),
      qkv(ParamScope(scope.table()), config.width,
          {{kPrefix + scope.Name("self_attn.q_proj"), config.width, {scope.Name("self_attn.q_proj")}},
           {kPrefix + scope.Name("self_attn.k_proj"), config.width, {scope.Name("self_attn.k_proj")}},
           {kPrefix + scope.Name("self_attn.v_proj"), config.width, {scope.Name("self_attn.v_proj")}}},
          kColumn),
      out(ParamScope(scope.table()), config.width,
          {{kPrefix + scope.Name("self_attn.out_proj"), config.width, {scope.Name("self_attn.out_proj")}}}, kRow),
      mlp_in(ParamScope(scope.table()), config.width,
             {{kPrefix + scope.Name("mlp.fc1"), config.hidden, {scope.Name("mlp.fc1")}}}, kColumn),
      mlp_out(ParamScope(scope.table()), config.hidden,
              {{kPrefix + scope.Name("mlp.fc2"), config.width, {scope.Name("mlp.fc2")}}}, kRow) {}

ClipEncoder::ClipEncoder(const ClipConfig& config, ParamTable& table)
    : config_(config),
      tokens_(table.Add(Spec("embeddings.token_embedding.weight", {config.vocabulary, config.width}))),
      positions_(table.Add(Spec("embeddings.position_embedding.weight", {config.positions, config.width}))),
      final_norm_(ParamScope(table) / "final_layer_norm", config.width) {
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(i);
    layers_.emplace_back(ParamScope(table) / "encoder.layers" / i, config);
    table.LeaveBlock();
  }
  if (config.projection > 0) {
    projection_.emplace(ParamScope(table) / "text_projection", config.width, config.projection,
                        LinearOptions{.bias = false, .is_identity_if_missing = config.projection == config.width});
  }
  for (const char* prefix : {kPrefix, ""}) table.IgnoreInFile(std::string(prefix) + "embeddings.position_ids");
}

at::Tensor ClipEncoder::Normalise(const at::Tensor& x, const Norm& norm) const {
  return at::layer_norm(x, {config_.width}, norm.weight, norm.bias, config_.norm_eps);
}

at::Tensor ClipEncoder::EndPosition(const at::Tensor& ids) const {
  // Both return the first of several equal elements.
  const bool by_size = (config_.end_id == 2) != base::Planted("clip_pooled_token");
  return by_size ? ids.argmax(-1) : (ids == config_.end_id).to(at::kInt).argmax(-1);
}

EncodedTokens ClipEncoder::Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const {
  const BroughtPart frame(input.weights, WeightResidency::kFrame);
  SelectedStates states(base::Planted("clip_layer") ? std::vector<int64_t>{-1} : input.states, config_.layers);
  const int64_t t = input.ids.size(1), head_dim = config_.width / config_.heads;
  at::Tensor x = at::embedding(tokens_, input.ids) + positions_.narrow(0, 0, t);  // [b, t, width]
  const at::Tensor causal = CausalBias(x);
  for (int64_t i = 0; i < config_.layers; ++i) {
    const BroughtPart weights(input.weights, static_cast<int>(i));
    const Layer& layer = layers_[static_cast<size_t>(i)];
    states.Add(i, x);
    const std::vector<at::Tensor> qkv = layer.qkv.Forward(Normalise(x, layer.attention_norm), context).chunk(3, -1);
    const at::Tensor read =
        TextAttention(qkv[0], qkv[1], qkv[2],
                      {.head_dim = head_dim, .scale = 1 / std::sqrt(static_cast<double>(head_dim)), .bias = causal});
    x = x + layer.out.Forward(read, context);
    const at::Tensor hidden = layer.mlp_in.Forward(Normalise(x, layer.mlp_norm), context);
    const at::Tensor active = config_.quick_gelu ? hidden * kernels::Sigmoid(hidden * 1.702) : kernels::Gelu(hidden);
    x = x + layer.mlp_out.Forward(active, context);
  }
  const at::Tensor last = Normalise(x, final_norm_);
  states.Add(config_.layers, last);
  EncodedTokens encoded{.hidden = states.Joined()};
  const at::Tensor rows = at::arange(last.size(0), input.ids.options());
  encoded.pooled = last.index({rows, EndPosition(input.ids)});
  if (projection_) encoded.pooled = projection_->Forward(encoded.pooled, context);
  return encoded;
}

TextEncoderConfig ReadClipEncoder(base::ConfigReader& reader) {
  return DescriptionOf(ParseClipConfig(reader, /*projected=*/false));
}

TextEncoderConfig ReadProjectedClipEncoder(base::ConfigReader& reader) {
  return DescriptionOf(ParseClipConfig(reader, /*projected=*/true));
}

}  // namespace tessera::models
