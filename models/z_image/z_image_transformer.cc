#include "models/z_image/z_image_transformer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/layers/embedding.h"
#include "models/layers/folded_input.h"
#include "models/layers/rotary.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, t text tokens, D width, h heads (of this rank), d head_dim.

namespace tessera::models {
namespace {

constexpr int64_t kSinusoidChannels = 256;
constexpr int64_t kTimestepHidden = 1024;
constexpr double kHeadNormEps = 1e-5;  // whatever norm_eps is
constexpr double kOutputNormEps = 1e-6;

// The weights' names contain the size of a patch and its frames.
constexpr char kOfPatch[] = "2-1";

// tanh, from a function whose bits do not depend on the place of an element.
at::Tensor Tanh(const at::Tensor& x) { return (2 * kernels::Sigmoid(2 * x.to(at::kDouble)) - 1).to(x.scalar_type()); }

}  // namespace

// A layer over the tokens of an image, of a text or of both.
struct ZImageTransformer::Layer {
  // Where the layer runs determines how its gradients are summed: those of the text belong to the conditioning.
  struct Place {
    std::optional<parallel::TokenRows> tokens;
    PartialGradient of_tokens, of_heads;
  };
  static constexpr PartialGradient kOfHeads{.tensor = OverTensor::kHeads};
  static constexpr Place kImage{parallel::TokenRows::kImage, {}, kOfHeads};
  static constexpr Place kBoth{parallel::TokenRows::kTextThenImage, {}, kOfHeads};
  static constexpr Place kText{std::nullopt,
                               {.sequence = false, .tensor = OverTensor::kWhole},
                               {.sequence = false, .tensor = OverTensor::kHeads}};

  Layer(ParamTable& table, const std::string& name, const Place& place, const ZImageConfig& config)
      : Layer(ParamScope(table, name, place.of_tokens), ParamScope(table, name, place.of_heads), place.tokens, config) {
  }

  Layer(const ParamScope& scope, const ParamScope& of_heads, std::optional<parallel::TokenRows> tokens,
        const ZImageConfig& config)
      : tokens(tokens),
        attention_norm((scope / "attention_norm1").Add("weight", {config.width})),
        attended_norm((scope / "attention_norm2").Add("weight", {config.width})),
        mlp_norm((scope / "ffn_norm1").Add("weight", {config.width})),
        mlp_out_norm((scope / "ffn_norm2").Add("weight", {config.width})),
        qkv(scope / "attention", config.width, {{"to_q", config.width}, {"to_k", config.width}, {"to_v", config.width}},
            Options(LinearRole::kColumn)),
        query_norm((of_heads / "attention.norm_q").Add("weight", {config.head_dim()})),
        key_norm((of_heads / "attention.norm_k").Add("weight", {config.head_dim()})),
        out(scope / "attention.to_out.0", config.width, config.width, Options(LinearRole::kRow)),
        gate_and_value(scope / "feed_forward", config.width, {{"w1", config.hidden()}, {"w3", config.hidden()}},
                       Options(LinearRole::kColumn)),
        mlp_out(scope / "feed_forward.w2", config.hidden(), config.width, Options(LinearRole::kRow)),
        eps(config.norm_eps) {
    if (tokens) {
      modulation.emplace(scope.OfConditioning() / "adaLN_modulation.0", config.modulation_width(), 4 * config.width);
    }
  }

  LinearOptions Options(LinearRole role) const { return {.role = role, .bias = false, .tokens = tokens}; }

  parallel::Projection Project(const at::Tensor& x, const at::Tensor& scale,
                               const parallel::ForwardContext& context) const {
    return {.packed = qkv.Forward(ScaledRmsNormFor(qkv, x, attention_norm, IfDefined(scale), eps, context), context),
            .query_norm = {.weight = query_norm, .bias = {}, .eps = kHeadNormEps},
            .key_norm = {.weight = key_norm, .bias = {}, .eps = kHeadNormEps},
            .rotary = {}};
  }

  // Adds the attention's result [b, tokens, h, d] and the MLP to x. m: scale and gate of the attention, then of the
  // MLP, each [b, D]; undefined for a layer without modulation.
  at::Tensor Finish(const at::Tensor& x, const at::Tensor& attended, const std::vector<at::Tensor>& m,
                    const parallel::ForwardContext& context) const {
    const at::Tensor read = kernels::RmsNorm(out.Forward(attended.flatten(2), context), attended_norm, eps);
    const at::Tensor sum = Gated(x, m[1], read);
    const std::vector<at::Tensor> parts =
        gate_and_value.Forward(ScaledRmsNormFor(gate_and_value, sum, mlp_norm, IfDefined(m[2]), eps, context), context)
            .chunk(2, -1);
    const at::Tensor hidden = mlp_out.Forward(SwiGluFor(mlp_out, parts[0], parts[1], context), context);
    return Gated(sum, m[3], kernels::RmsNorm(hidden, mlp_out_norm, eps));
  }

  static std::optional<at::Tensor> IfDefined(const at::Tensor& x) {
    return x.defined() ? std::optional(x) : std::nullopt;
  }
  static at::Tensor Gated(const at::Tensor& x, const at::Tensor& gate, const at::Tensor& y) {
    return gate.defined() ? kernels::GatedResidual(x, gate, y) : x + y;
  }

  std::optional<parallel::TokenRows> tokens;
  at::Tensor attention_norm, attended_norm, mlp_norm, mlp_out_norm;  // [D]
  Linear qkv;
  at::Tensor query_norm, key_norm;  // [d]
  Linear out, gate_and_value, mlp_out;
  std::optional<Linear> modulation;
  double eps;
};

ZImageTransformer::ZImageTransformer(const ZImageConfig& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      image_in_(ParamScope(table) / "all_x_embedder" / kOfPatch,
                ZImageConfig::kPatch * ZImageConfig::kPatch * config.channels, config.width),
      image_padding_(ParamScope(table).Add("x_pad_token", {1, config.width})),
      text_padding_(ParamScope(table).OfConditioning().Add("cap_pad_token", {1, config.width})),
      text_norm_((ParamScope(table).OfConditioning() / "cap_embedder.0").Add("weight", {config.text_width})),
      text_in_(ParamScope(table).OfConditioning() / "cap_embedder.1", config.text_width, config.width),
      timestep_first_(ParamScope(table).OfConditioning() / "t_embedder.mlp.0", kSinusoidChannels, kTimestepHidden),
      timestep_second_(ParamScope(table).OfConditioning() / "t_embedder.mlp.2", kTimestepHidden,
                       config.modulation_width()),
      output_scale_(ParamScope(table).OfConditioning() / "all_final_layer" / kOfPatch / "adaLN_modulation.1",
                    config.modulation_width(), config.width),
      output_projection_(ParamScope(table) / "all_final_layer" / kOfPatch / "linear", config.width,
                         ZImageConfig::kPatch * ZImageConfig::kPatch * config.channels) {
  const auto name = [](const char* list, int64_t i) { return std::string(list) + "." + std::to_string(i); };
  for (int64_t i = 0; i < config.refiners; ++i) {
    text_layers_.emplace_back(table, name("context_refiner", i), Layer::kText, config);
  }
  for (int64_t i = 0; i < config.refiners; ++i) {
    table.EnterBlock(i);
    layers_.emplace_back(table, name("noise_refiner", i), Layer::kImage, config);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(config.refiners + i);
    layers_.emplace_back(table, name("layers", i), Layer::kBoth, config);
  }
  table.LeaveBlock();
}

ZImageTransformer::~ZImageTransformer() = default;

int64_t ZImageTransformer::output_features() const {
  return ZImageConfig::kPatch * ZImageConfig::kPatch * config_.channels;
}

Positions ZImageTransformer::PlaceAt(const at::Tensor& frames, const at::Tensor& rows, const at::Tensor& columns,
                                     at::Device device) const {
  const auto axis = [&](const at::Tensor& positions, size_t index) {
    return RotaryAngles(positions, config_.axes[index], config_.rope_theta);
  };
  return RotaryPositions(at::cat({axis(frames, 0), axis(rows, 1), axis(columns, 2)}, 1), AccumulationType(dtype_),
                         device);
}

// Text tokens, with their padding, are at (1 + index, 0, 0), image tokens at (1 + length of the text, row, column), and
// the image's padding at (0, 0, 0).
Positions ZImageTransformer::Place(TokenGrid grid, int64_t text, at::Device device) const {
  const at::TensorOptions fp64(at::kDouble);
  const double frame = base::Planted("z_image_frame_after_text") ? 1 : static_cast<double>(1 + text);
  const auto padded = [&](const at::Tensor& of_image) { return at::constant_pad_nd(of_image, {0, grid.padding}); };
  Positions positions = PlaceAt(padded(at::full({grid.image()}, frame, fp64)),
                                padded(at::arange(grid.height, fp64).repeat_interleave(grid.width)),
                                padded(at::arange(grid.width, fp64).repeat({grid.height})), device);
  if (grid.padding > 0) {
    positions.embedded = (at::arange(grid.count(), at::kLong) >= grid.image()).unsqueeze(1).to(device);
  }
  return positions;
}

Positions ZImageTransformer::PlaceText(int64_t tokens, TokenGrid, at::Device device) const {
  const at::Tensor zeros = at::zeros({tokens}, at::kDouble);
  return PlaceAt(at::arange(1, tokens + 1, at::kDouble), zeros, zeros, device);
}

PromptState ZImageTransformer::Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                                    const parallel::ForwardContext& context) const {
  at::Tensor x = text_in_.Forward(kernels::RmsNorm(text.to(dtype_), text_norm_, config_.norm_eps), context);
  const at::Tensor index = at::arange(x.size(1), at::TensorOptions(at::kLong).device(x.device()));
  const at::Tensor is_padding = index.unsqueeze(0) >= extras[0].to(at::kLong).reshape({-1, 1});  // [b, t]
  if (!base::Planted("z_image_text_padding_kept")) x = at::where(is_padding.unsqueeze(-1), text_padding_, x);
  const Positions positions = PlaceText(x.size(1), {}, x.device());
  const kernels::RotaryTables rotary{.cos = positions.cos, .sin = positions.sin};
  const std::vector<at::Tensor> no_modulation(4);
  for (const Layer& layer : text_layers_) {
    const parallel::Projection projected = layer.Project(x, {}, context);
    const std::vector<at::Tensor> qkv = projected.packed.chunk(3, -1);
    const auto heads = [&](const at::Tensor& packed, const kernels::HeadNorm& norm) {
      return kernels::HeadsNormRope(packed, config_.head_dim(), norm, rotary);
    };
    const at::Tensor read = kernels::Attention(heads(qkv[0], projected.query_norm), heads(qkv[1], projected.key_norm),
                                               qkv[2].unflatten(-1, {-1, config_.head_dim()}), std::nullopt,
                                               1 / std::sqrt(static_cast<double>(config_.head_dim())));
    x = layer.Finish(x, read, no_modulation, context);
  }
  return {.text = x, .vector = {}};
}

// The model's time runs from 0, noise, to 1.
StepEmbedding ZImageTransformer::EmbedStep(const at::Tensor& timesteps, const at::Tensor&,
                                           const parallel::ForwardContext& context) const {
  const at::ScalarType accumulation = AccumulationType(dtype_);
  const at::Tensor time = ((1000 - timesteps) / 1000).to(accumulation) * config_.timestep_scale;
  const at::Tensor sinusoid = Sinusoid(time, accumulation, kSinusoidChannels).to(dtype_);
  const at::Tensor vector =
      timestep_second_.Forward(kernels::Silu(timestep_first_.Forward(sinusoid, context)), context);
  return {.vector = vector, .shared = vector};
}

at::Tensor ZImageTransformer::Modulate(int index, const StepEmbedding& step,
                                       const parallel::ForwardContext& context) const {
  if (index == num_blocks()) return output_scale_.Forward(kernels::Silu(step.shared), context);
  const at::Tensor shared = base::Planted("z_image_silu_before_modulation") ? kernels::Silu(step.shared) : step.shared;
  std::vector<at::Tensor> m = layers_[static_cast<size_t>(index)].modulation->Forward(shared, context).chunk(4, -1);
  for (const size_t gate : {1, 3}) m[gate] = base::Planted("z_image_gate_without_tanh") ? m[gate] : Tanh(m[gate]);
  return at::cat(m, -1);
}

at::Tensor ZImageTransformer::Embed(const at::Tensor& patches, const at::Tensor& is_padding,
                                    const parallel::ForwardContext& context) const {
  const at::Tensor x = image_in_.Forward(patches, context);
  return is_padding.defined() ? at::where(is_padding, image_padding_, x) : x;
}

void ZImageTransformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                              const parallel::ForwardContext& context) const {
  const Layer& layer = layers_[static_cast<size_t>(index)];
  const bool with_text = index >= config_.refiners;
  const std::vector<at::Tensor> m = conditioning.modulation.chunk(4, -1);
  const int64_t t = state.text.size(1), n = state.image.size(1);
  const at::Tensor x = with_text ? at::cat({state.text, state.image}, 1) : state.image;
  parallel::Projection projected = layer.Project(x, m[0], context);
  // The product may return more tokens than it was given, if tensor ranks share them out. Those of the text come first.
  const int64_t tokens = projected.packed.size(1), first = with_text ? 0 : conditioning.cos.size(0) - tokens;
  projected.rotary = {.cos = conditioning.cos.narrow(0, first, tokens),
                      .sin = conditioning.sin.narrow(0, first, tokens)};
  const at::Tensor attended =
      context.attention.Attend(index, {.projections = {std::move(projected)},
                                       .head_dim = config_.head_dim(),
                                       .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim())),
                                       .queries = *layer.tokens,
                                       .keys = *layer.tokens});
  const at::Tensor y = layer.Finish(x, attended, m, context);
  state.image = y.narrow(1, with_text ? t : 0, n);
  if (with_text) state.text = y.narrow(1, 0, t);
}

at::Tensor ZImageTransformer::Head(const BlockState& state, const Conditioning& conditioning,
                                   const parallel::ForwardContext& context) const {
  const at::Tensor& scale = conditioning.modulation;
  return output_projection_.Forward(
      kernels::LayerNormModulate(state.image, at::zeros_like(scale), scale, kOutputNormEps), context);
}

}  // namespace tessera::models
