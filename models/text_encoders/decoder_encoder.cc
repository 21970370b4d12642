#include "models/text_encoders/decoder_encoder.h"

#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/layers/rotary.h"
#include "models/precision.h"

namespace tessera::models {
namespace {

// The parts of a language model's names that come before "layers": as most files have them, and then as the model
// without its head, as a model of texts and pictures of transformers 5, and as one of older versions.
constexpr const char* kPrefixes[] = {"model.", "", "model.language_model.", "language_model.model."};

std::vector<std::string> AliasesOf(const std::string& name) {
  std::vector<std::string> aliases;
  for (size_t i = 1; i < std::size(kPrefixes); ++i) aliases.push_back(kPrefixes[i] + name);
  return aliases;
}

at::Tensor Add(ParamTable& table, const std::string& name, std::vector<int64_t> shape) {
  return table.Add({.name = kPrefixes[0] + name, .shape = std::move(shape), .aliases = AliasesOf(name)});
}

LinearPart Part(const std::string& name, int64_t out) { return {kPrefixes[0] + name, out, AliasesOf(name)}; }

// mask [b, t] → [b, t, 1]: the rows before which there are no tokens, nor are they one themselves. Undefined without a
// mask.
at::Tensor BlindRows(const at::Tensor& mask) {
  if (!mask.defined() || base::Planted("padding_reads_padding")) return {};
  return (mask.cumsum(1) == 0).unsqueeze(-1);
}

}  // namespace

DecoderEncoder::Layer::Layer(const std::string& name, const DecoderConfig& config, ParamTable& table)
    : attention_norm(Add(table, name + "input_layernorm.weight", {config.width})),
      mlp_norm(Add(table, name + "post_attention_layernorm.weight", {config.width})),
      qkv(ParamScope(table), config.width,
          {Part(name + "self_attn.q_proj", config.heads * config.head_dim),
           Part(name + "self_attn.k_proj", config.kv_heads * config.head_dim),
           Part(name + "self_attn.v_proj", config.kv_heads * config.head_dim)},
          {.role = LinearRole::kColumn, .bias = config.qkv_bias}),
      out(ParamScope(table), config.heads * config.head_dim, {Part(name + "self_attn.o_proj", config.width)},
          {.role = LinearRole::kRow, .bias = false}),
      gate_and_value(ParamScope(table), config.width,
                     {Part(name + "mlp.gate_proj", config.hidden), Part(name + "mlp.up_proj", config.hidden)},
                     {.role = LinearRole::kColumn, .bias = false}),
      mlp_out(ParamScope(table), config.hidden, {Part(name + "mlp.down_proj", config.width)},
              {.role = LinearRole::kRow, .bias = false}) {
  if (config.qk_norm) {
    query_norm = Add(table, name + "self_attn.q_norm.weight", {config.head_dim});
    key_norm = Add(table, name + "self_attn.k_norm.weight", {config.head_dim});
  }
}

DecoderEncoder::DecoderEncoder(const DecoderConfig& config, ParamTable& table)
    : config_(config),
      embedding_(table, absl::StrCat(kPrefixes[0], "embed_tokens.weight"), config.vocabulary, config.width,
                 AliasesOf("embed_tokens.weight")),
      final_norm_(Add(table, "norm.weight", {config.width})) {
  for (const char* name : {"lm_head.weight", "language_model.lm_head.weight"}) table.IgnoreInFile(name);
  // What Mistral 3 and Qwen2.5-VL read pictures with; a model without that part does not use it.
  for (const char* scope : {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                            "model.multi_modal_projector.", "visual.", "model.visual."}) {
    table.IgnoreScopeInFile(scope);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(i);
    layers_.emplace_back(absl::StrCat("layers.", i, "."), config, table);
    table.LeaveBlock();
  }
}

DecoderEncoder::DecoderEncoder(const VisionLanguageConfig& config, ParamTable& table)
    : DecoderEncoder(config.text, table) {
  vision_.emplace(config.vision, config.text.layers, table);
  picture_id_ = config.picture_id;
  sections_ = config.sections;
}

at::Tensor DecoderEncoder::PictureTokens(const TextEncoderInput& input, const parallel::ForwardContext& context) const {
  if (input.pictures.empty()) return {};
  TORCH_CHECK(vision_.has_value(), "only a model with a vision tower reads pictures");
  if (input.picture_tokens.defined()) return input.picture_tokens;
  return vision_->Forward(input.pictures, input.weights, context);
}

at::Tensor DecoderEncoder::Embed(const TextEncoderInput& input, const at::Tensor& picture_tokens) const {
  const at::Tensor x = embedding_.Forward(input.ids);
  if (!picture_tokens.defined()) return x;
  TORCH_CHECK(x.size(0) == 1, "only one text can have pictures");
  const at::Tensor places = at::nonzero(input.ids[0] == picture_id_).squeeze(1);  // [units]
  TORCH_CHECK(places.size(0) == picture_tokens.size(0), "a text has ", places.size(0), " tokens of pictures of ",
              picture_tokens.size(0));
  return x.index_copy(1, places, picture_tokens.unsqueeze(0));
}

at::Tensor DecoderEncoder::Angles(const TextEncoderInput& input) const {
  const auto angles = [&](const at::Tensor& positions) {
    return RotaryAngles(positions, config_.head_dim, config_.rope_theta);
  };
  if (input.pictures.empty()) return angles(at::arange(input.ids.size(1), at::kDouble));
  const at::Tensor ids = input.ids[0].to(at::kCPU).contiguous();
  std::vector<PatchGrid> grids;
  for (const EncoderPicture& picture : input.pictures) grids.push_back(picture.grid);
  const std::array<std::vector<int64_t>, 3> positions =
      PositionsOfText({ids.const_data_ptr<int64_t>(), static_cast<size_t>(ids.numel())}, picture_id_, grids);
  // The first frequencies encode the frame, the next ones the row and the last ones the column.
  std::vector<at::Tensor> of_axes;
  int64_t first = 0;
  for (size_t axis = 0; axis < positions.size(); ++axis) {
    of_axes.push_back(angles(at::tensor(positions[axis], at::kDouble)).narrow(1, first, sections_[axis]));
    first += sections_[axis];
  }
  return at::cat(of_axes, 1);
}

EncodedTokens DecoderEncoder::Forward(const TextEncoderInput& input, const parallel::ForwardContext& context) const {
  const BroughtPart frame(input.weights, WeightResidency::kFrame);
  SelectedStates states(input.states, config_.layers);
  const at::Tensor picture_tokens = PictureTokens(input, context);
  at::Tensor x = Embed(input, picture_tokens);  // [b, t, width]
  const at::ScalarType accumulation = AccumulationType(x.scalar_type());
  at::Tensor bias = CausalBias(x);
  if (input.mask.defined()) bias = bias + PaddingBias(input.mask, accumulation);
  const Positions tables = RotaryPositions(Angles(input), accumulation, x.device());
  const int64_t queries = config_.heads * config_.head_dim, keys = config_.kv_heads * config_.head_dim;
  const auto heads = [&](const at::Tensor& packed, const at::Tensor& norm) {
    const at::Tensor split = packed.unflatten(-1, {-1, config_.head_dim});
    const at::Tensor normalised = norm.defined() ? kernels::RmsNorm(split.contiguous(), norm, config_.norm_eps) : split;
    return RotateHalves(normalised, tables).flatten(2);
  };
  // Padding before the text sees no key, and therefore reads nothing.
  const at::Tensor blind = BlindRows(input.mask);
  const TextAttentionOptions attention{
      .head_dim = config_.head_dim, .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)), .bias = bias};
  for (int64_t i = 0; i < config_.layers; ++i) {
    const bool normed = i == config_.layers - 1 && base::Planted("decoder_penultimate_normed");
    states.Add(i, normed ? kernels::RmsNorm(x, final_norm_, config_.norm_eps) : x);
    if (i == states.last()) return {.hidden = states.Joined(), .picture_tokens = picture_tokens};
    const BroughtPart weights(input.weights, static_cast<int>(i));
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const std::vector<at::Tensor> qkv =
        layer.qkv.Forward(kernels::RmsNorm(x, layer.attention_norm, config_.norm_eps), context)
            .split_with_sizes({queries, keys, keys}, -1);
    at::Tensor read = TextAttention(heads(qkv[0], layer.query_norm), heads(qkv[1], layer.key_norm), qkv[2], attention);
    if (blind.defined()) read = read.masked_fill(blind, 0);
    x = x + layer.out.Forward(read, context);

    const std::vector<at::Tensor> parts =
        layer.gate_and_value.Forward(kernels::RmsNorm(x, layer.mlp_norm, config_.norm_eps), context).chunk(2, -1);
    x = x + layer.mlp_out.Forward(kernels::SwiGlu(parts[0], parts[1]), context);
  }
  states.Add(config_.layers, kernels::RmsNorm(x, final_norm_, config_.norm_eps));
  return {.hidden = states.Joined(), .picture_tokens = picture_tokens};
}

namespace {

TextEncoderConfig DescriptionOf(const DecoderConfig& config) {
  return {.vocabulary = config.vocabulary,
          .width = config.width,
          .layers = config.layers,
          .positions = config.positions,
          .takes_left_padding = true,
          .make = [config](ParamTable& table) { return std::make_unique<DecoderEncoder>(config, table); }};
}

}  // namespace

TextEncoderConfig ReadMistral3Encoder(base::ConfigReader& reader) { return DescriptionOf(ParseMistral3Config(reader)); }

TextEncoderConfig ReadQwen3Encoder(base::ConfigReader& reader) { return DescriptionOf(ParseQwen3Config(reader)); }

TextEncoderConfig ReadQwen25VlEncoder(base::ConfigReader& reader) { return DescriptionOf(ParseQwen25VlConfig(reader)); }

TextEncoderConfig ReadQwen25VlWithVision(base::ConfigReader& reader) {
  const VisionLanguageConfig config = ParseQwen25VlWithVision(reader);
  TextEncoderConfig described = DescriptionOf(config.text);
  described.make = [config](ParamTable& table) { return std::make_unique<DecoderEncoder>(config, table); };
  described.pictures =
      PictureReading{.picture_id = config.picture_id, .patch = config.vision.patch, .frames = config.vision.frames};
  return described;
}

}  // namespace tessera::models
