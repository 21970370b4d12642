#include "models/qwen_image/qwen_image_transformer.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/layers/folded_input.h"
#include "models/layers/references.h"
#include "models/layers/rotary.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, t text tokens, D width, h heads (of this rank), d head_dim.

namespace tessera::models {
namespace {

constexpr int64_t kSinusoidChannels = 256;
constexpr double kNormEps = 1e-6;

LinearOptions Column(parallel::TokenRows tokens) { return {.role = LinearRole::kColumn, .tokens = tokens}; }
LinearOptions Row(parallel::TokenRows tokens) { return {.role = LinearRole::kRow, .tokens = tokens}; }

// The coordinates of `count` rows or columns of a grid: 0 is the middle, and an odd one leans to the negative side.
at::Tensor Centred(int64_t count) {
  const int64_t first = base::Planted("qwen_positions_from_the_corner") ? 0 : count / 2 - count;
  return at::arange(first, first + count, at::TensorOptions(at::kDouble));
}

// The position of the first text token next to an image of this grid, on every axis.
int64_t FirstOfText(TokenGrid grid) { return std::max(grid.height / 2, grid.width / 2); }

}  // namespace

// Consecutive tokens with the same modulation.
struct ModulatedTokens {
  int64_t count;
  std::span<const at::Tensor> m;  // shift, scale and gate of the attention, then of the MLP, each [b, D]
};

// Applies `part_of` to the tokens of each part of x [b, n, D] and joins the results [b, ·, D].
template <class PartOf>
at::Tensor ByPart(std::span<const ModulatedTokens> parts, const PartOf& part_of) {
  if (parts.size() == 1) return part_of(parts[0], [](const at::Tensor& x) { return x; });
  std::vector<at::Tensor> results;
  int64_t first = 0;
  for (const ModulatedTokens& part : parts) {
    results.push_back(part_of(part, [&](const at::Tensor& x) { return x.narrow(1, first, part.count); }));
    first += part.count;
  }
  return at::cat(results, 1);
}

// One stream of a block: the weights of the image or of the text.
struct QwenImageTransformer::Stream {
  struct Names {
    parallel::TokenRows tokens;
    const char *modulation, *q, *k, *v, *norm_q, *norm_k, *out, *mlp;
  };
  static constexpr Names kImage{
      parallel::TokenRows::kImage, "img_mod.1", "to_q", "to_k", "to_v", "norm_q", "norm_k", "to_out.0", "img_mlp"};
  static constexpr Names kText{parallel::TokenRows::kText,
                               "txt_mod.1",
                               "add_q_proj",
                               "add_k_proj",
                               "add_v_proj",
                               "norm_added_q",
                               "norm_added_k",
                               "to_add_out",
                               "txt_mlp"};

  Stream(const ParamScope& scope, const Names& names, const QwenImageConfig& config)
      : modulation(scope.OfConditioning() / names.modulation, config.width(), 6 * config.width()),
        qkv(scope / "attn", config.width(),
            {{names.q, config.width()}, {names.k, config.width()}, {names.v, config.width()}}, Column(names.tokens)),
        norm_q((scope.OfHeads() / "attn" / names.norm_q).Add("weight", {config.head_dim})),
        norm_k((scope.OfHeads() / "attn" / names.norm_k).Add("weight", {config.head_dim})),
        out(scope / "attn" / names.out, config.width(), config.width(), Row(names.tokens)),
        mlp_in(scope / names.mlp / "net.0.proj", config.width(), 4 * config.width(), Column(names.tokens)),
        mlp_out(scope / names.mlp / "net.2", 4 * config.width(), config.width(), Row(names.tokens)) {}

  // `parts` are those of x.
  parallel::Projection Project(const at::Tensor& x, std::span<const ModulatedTokens> parts,
                               const parallel::ForwardContext& context) const {
    return {.packed = qkv.Forward(Modulated(x, parts, context), context),
            .query_norm = {.weight = norm_q, .bias = {}, .eps = kNormEps},
            .key_norm = {.weight = norm_k, .bias = {}, .eps = kNormEps},
            .rotary = {}};
  }

  // The modulated norm of x, the input of `qkv`.
  ProductInput Modulated(const at::Tensor& x, std::span<const ModulatedTokens> parts,
                         const parallel::ForwardContext& context) const {
    if (parts.size() == 1) return LayerNormModulateFor(qkv, x, parts[0].m[0], parts[0].m[1], kNormEps, context);
    return ByPart(parts, [&](const ModulatedTokens& part, const auto& own) {
      return kernels::LayerNormModulate(own(x), part.m[0], part.m[1], kNormEps);
    });
  }

  // Adds the attention's result for this stream's tokens and the MLP to x.
  at::Tensor Finish(const at::Tensor& x, const at::Tensor& attended, std::span<const ModulatedTokens> parts,
                    const parallel::ForwardContext& context) const {
    const at::Tensor y = out.Forward(attended, context);
    std::vector<at::Tensor> sums;  // of each part
    ProductInput normalised;
    if (parts.size() == 1) {
      const std::span<const at::Tensor> m = parts[0].m;
      std::tie(sums.emplace_back(), normalised) =
          GatedResidualNormModulateFor(mlp_in, x, m[2], y, m[3], m[4], kNormEps, context);
    } else {
      normalised = ByPart(parts, [&](const ModulatedTokens& part, const auto& own) {
        auto [sum, modulated] =
            kernels::GatedResidualNormModulate(own(x), part.m[2], own(y), part.m[3], part.m[4], kNormEps);
        sums.push_back(std::move(sum));
        return modulated;
      });
    }
    const at::Tensor z = GeluTanhMlp(mlp_in, mlp_out, normalised, context);
    size_t next = 0;
    return ByPart(parts, [&](const ModulatedTokens& part, const auto& own) {
      return kernels::GatedResidual(sums[next++], part.m[5], own(z));
    });
  }

  Linear modulation, qkv;
  at::Tensor norm_q, norm_k;  // [d]
  Linear out, mlp_in, mlp_out;
};

struct QwenImageTransformer::JointBlock {
  JointBlock(const ParamScope& scope, const QwenImageConfig& config)
      : image(scope, Stream::kImage, config), text(scope, Stream::kText, config) {}
  Stream image, text;
};

QwenImageTransformer::QwenImageTransformer(const QwenImageConfig& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      image_in_(ParamScope(table) / "img_in", config.channels, config.width()),
      text_norm_((ParamScope(table).OfConditioning() / "txt_norm").Add("weight", {config.text_width})),
      text_in_(ParamScope(table).OfConditioning() / "txt_in", config.text_width, config.width()),
      timestep_embedder_(ParamScope(table).OfConditioning() / "time_text_embed.timestep_embedder", kSinusoidChannels,
                         config.width()),
      output_modulation_(ParamScope(table).OfConditioning() / "norm_out.linear", config.width(), 2 * config.width()),
      output_projection_(ParamScope(table) / "proj_out", config.width(), config.channels) {
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(i);
    blocks_.emplace_back(ParamScope(table) / "transformer_blocks" / i, config);
  }
  table.LeaveBlock();
}

QwenImageTransformer::~QwenImageTransformer() = default;

Positions QwenImageTransformer::PlaceAt(const at::Tensor& frames, const at::Tensor& rows, const at::Tensor& columns,
                                        at::Device device) const {
  const at::Tensor angles = at::cat({RotaryAngles(frames, config_.axes[0]), RotaryAngles(rows, config_.axes[1]),
                                     RotaryAngles(columns, config_.axes[2])},
                                    1);
  return RotaryPositions(angles, AccumulationType(dtype_), device);
}

// The image is frame 0, reference i, from 0, is frame i + 1. Rows and columns are centred by the size of each.
Positions QwenImageTransformer::Place(TokenGrid grid, int64_t, at::Device device) const {
  return PlaceGrid(grid, /*frame=*/0, device);
}

Positions QwenImageTransformer::PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const {
  std::vector<Positions> pictures;
  for (const TokenGrid& grid : grids) {
    pictures.push_back(PlaceGrid(grid, static_cast<int64_t>(pictures.size()) + 1, device));
  }
  return Join(pictures);
}

Positions QwenImageTransformer::PlaceGrid(TokenGrid grid, int64_t frame, at::Device device) const {
  TORCH_CHECK((std::max(grid.height, grid.width) + 1) / 2 <= QwenImageConfig::kPositions, "a grid of ", grid.height,
              " x ", grid.width, " tokens is larger than the model's table of positions");
  return PlaceAt(at::full({grid.count()}, static_cast<double>(frame), at::TensorOptions(at::kDouble)),
                 RepeatOverColumns(Centred(grid.height), grid.width),
                 RepeatOverRows(Centred(grid.width).unsqueeze(1), grid.height).squeeze(1), device);
}

Positions QwenImageTransformer::PlaceText(int64_t tokens, TokenGrid grid, at::Device device) const {
  const int64_t first = base::Planted("qwen_text_from_zero") ? 0 : FirstOfText(grid);
  TORCH_CHECK(first + tokens <= QwenImageConfig::kPositions, "a text of ", tokens, " tokens next to a grid of ",
              grid.height, " x ", grid.width, " tokens ends after the model's table of positions");
  const at::Tensor positions = at::arange(first, first + tokens, at::TensorOptions(at::kDouble));
  return PlaceAt(positions, positions, positions, device);
}

PromptState QwenImageTransformer::Read(const at::Tensor& text, const std::vector<at::Tensor>&,
                                       const parallel::ForwardContext& context) const {
  return {.text = text_in_.Forward(kernels::RmsNorm(text.to(dtype_), text_norm_, kNormEps), context), .vector = {}};
}

// The reference passes on a thousandth of the timestep and multiplies by 1000 after the product with the frequency,
// which differs from this only by the rounding of an angle.
StepEmbedding QwenImageTransformer::EmbedStep(const at::Tensor& timesteps, const at::Tensor&,
                                              const parallel::ForwardContext& context) const {
  const at::ScalarType accumulation = AccumulationType(dtype_);
  const at::Tensor thousandths = (timesteps / 1000).to(accumulation);
  const at::Tensor sinusoid = Sinusoid(thousandths * 1000, accumulation, kSinusoidChannels).to(dtype_);
  const at::Tensor vector = timestep_embedder_.Forward(sinusoid, context);  // [rows, D]
  at::Tensor shared = kernels::Silu(vector);
  if (config_.clean_references) {
    const at::Tensor clean = Sinusoid(at::zeros_like(thousandths), accumulation, kSinusoidChannels).to(dtype_);
    shared = at::cat({shared, kernels::Silu(timestep_embedder_.Forward(clean, context))}, -1);
  }
  return {.vector = vector, .shared = shared};
}

at::Tensor QwenImageTransformer::Modulate(int index, const StepEmbedding& step,
                                          const parallel::ForwardContext& context) const {
  // The timestep's part, and after it that of timestep 0 if the model has one.
  const std::vector<at::Tensor> parts = step.shared.split(config_.width(), -1);
  if (index == num_blocks()) return output_modulation_.Forward(parts[0], context);
  const JointBlock& block = blocks_[static_cast<size_t>(index)];
  std::vector<at::Tensor> m = {block.image.modulation.Forward(parts[0], context),
                               block.text.modulation.Forward(parts[0], context)};
  if (config_.clean_references) {
    const at::Tensor& clean = base::Planted("references_at_the_timestep") ? parts[0] : parts[1];
    m.push_back(block.image.modulation.Forward(clean, context));
  }
  return at::cat(m, -1);
}

at::Tensor QwenImageTransformer::Embed(const at::Tensor& patches, const at::Tensor&,
                                       const parallel::ForwardContext& context) const {
  return image_in_.Forward(patches, context);
}

void QwenImageTransformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                                 const parallel::ForwardContext& context) const {
  const JointBlock& block = blocks_[static_cast<size_t>(index)];
  // Those of the image, of the text and, if they are different, of the references.
  const std::vector<at::Tensor> m = conditioning.modulation.split(config_.width(), -1);
  const std::span<const at::Tensor> of_image(m.begin(), 6), of_text(m.begin() + 6, 6);
  const auto rotary = [&](int64_t first, int64_t tokens) -> kernels::RotaryTables {
    return {.cos = conditioning.cos.narrow(0, first, tokens), .sin = conditioning.sin.narrow(0, first, tokens)};
  };
  MoveReferencesToImage(conditioning.references, state);
  const ModulatedTokens text_parts[] = {{.count = state.text.size(1), .m = of_text}};
  std::vector<ModulatedTokens> image_parts;
  if (config_.clean_references && conditioning.references > 0) {
    image_parts.push_back({.count = conditioning.references, .m = std::span(m).subspan(12, 6)});
  }
  const int64_t references = image_parts.empty() ? 0 : conditioning.references;
  image_parts.push_back({.count = state.image.size(1) - references, .m = of_image});
  parallel::Projection text = block.text.Project(state.text, text_parts, context),
                       image = block.image.Project(state.image, image_parts, context);
  const int64_t t = text.packed.size(1), n = image.packed.size(1);
  text.rotary = rotary(0, t);
  image.rotary = rotary(t, n);
  const at::Tensor attended = context.attention
                                  .Attend(index, {.projections = {std::move(text), std::move(image)},
                                                  .head_dim = config_.head_dim,
                                                  .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)),
                                                  .queries = parallel::TokenRows::kTextThenImage,
                                                  .keys = parallel::TokenRows::kTextThenImage})
                                  .flatten(2);
  state.image = block.image.Finish(state.image, attended.narrow(1, t, n), image_parts, context);
  state.text = block.text.Finish(state.text, attended.narrow(1, 0, t), text_parts, context);
  MoveReferencesToText(conditioning.references, state);
}

at::Tensor QwenImageTransformer::Head(const BlockState& state, const Conditioning& conditioning,
                                      const parallel::ForwardContext& context) const {
  // In this norm scale comes before shift.
  const std::vector<at::Tensor> m = conditioning.modulation.chunk(2, -1);
  return output_projection_.Forward(kernels::LayerNormModulate(state.image, m[1], m[0], kNormEps), context);
}

}  // namespace tessera::models
