#include "models/flux2/flux2_transformer.h"

#include <cmath>
#include <tuple>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/layers/folded_input.h"
#include "models/layers/references.h"
#include "models/layers/rotary.h"
#include "models/precision.h"

// Shapes: b batch, n image tokens of the span, t text tokens, D width, H width of the MLP, h heads (of this rank), d
// head_dim.

namespace tessera::models {
namespace {

// The first coordinates of reference pictures are 10, 20, …
constexpr int64_t kPictureStep = 10;

// The rows of StepEmbedding::shared, in multiples of D.
constexpr int64_t kOfImage = 6, kOfText = 6, kOfSingle = 3, kOfHead = 2;

LinearOptions Plain() { return {.bias = false}; }
LinearOptions Column(parallel::TokenRows tokens, std::vector<int64_t> parts = {}) {
  return {.role = LinearRole::kColumn, .bias = false, .parts = std::move(parts), .tokens = tokens};
}
LinearOptions Row(parallel::TokenRows tokens, std::vector<int64_t> parts = {}) {
  return {.role = LinearRole::kRow, .bias = false, .parts = std::move(parts), .tokens = tokens};
}

// The rotary positions of `count` tokens from `first` on.
kernels::RotaryTables RowsOf(const Conditioning& conditioning, int64_t first, int64_t count) {
  return {.cos = conditioning.cos.narrow(0, first, count), .sin = conditioning.sin.narrow(0, first, count)};
}

// Some rows of a projection.
parallel::Projection RowsOf(const parallel::Projection& all, int64_t first, int64_t count) {
  parallel::Projection rows = all;
  rows.packed = all.packed.narrow(1, first, count);
  rows.rotary = {.cos = all.rotary.cos.narrow(0, first, count), .sin = all.rotary.sin.narrow(0, first, count)};
  return rows;
}

// [b, parts · D] → the parts, each [b, D].
std::vector<at::Tensor> Split(const at::Tensor& modulation, int64_t width) { return modulation.split(width, -1); }

// The halves of a product [..., 2 H], whose first one is the gate: each [..., H].
struct GateAndValue {
  at::Tensor gate, value;
};
GateAndValue Halves(const at::Tensor& product) {
  const std::vector<at::Tensor> halves = product.chunk(2, -1);
  if (base::Planted("flux2_gate_last")) return {.gate = halves[1], .value = halves[0]};
  return {.gate = halves[0], .value = halves[1]};
}

// Consecutive tokens with the same modulation: shifts, scales and gates, each [b, D].
struct ModulatedRows {
  int64_t tokens;
  std::span<const at::Tensor> m;
};
using AllRows = std::vector<ModulatedRows>;

// Applies f(rows, x of these rows, m) and joins the results.
template <class F>
at::Tensor ByRows(const AllRows& all, const at::Tensor& x, const F& f) {
  if (all.size() == 1) return f(x, all[0].m, 0);
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const auto& [tokens, m] : all) {
    if (tokens > 0) parts.push_back(f(x.narrow(1, first, tokens), m, first));
    first += tokens;
  }
  return parts.empty() ? f(x, all[0].m, 0) : at::cat(parts, 1);
}

// The norm of x, modulated by the shift m[i] and the scale m[i + 1], as the input of `product`.
ProductInput Modulated(const Linear& product, const AllRows& all, const at::Tensor& x, size_t i, double eps,
                       const parallel::ForwardContext& context) {
  if (all.size() == 1) return LayerNormModulateFor(product, x, all[0].m[i], all[0].m[i + 1], eps, context);
  return ByRows(all, x, [&](const at::Tensor& rows, std::span<const at::Tensor> m, int64_t) {
    return kernels::LayerNormModulate(rows, m[i], m[i + 1], eps);
  });
}

// x + m[i] · y.
at::Tensor Gated(const AllRows& all, const at::Tensor& x, size_t i, const at::Tensor& y) {
  return ByRows(all, x, [&](const at::Tensor& rows, std::span<const at::Tensor> m, int64_t first) {
    return kernels::GatedResidual(rows, m[i], y.narrow(1, first, rows.size(1)));
  });
}

}  // namespace

// One stream of a double block: the weights of the image or of the text.
struct Flux2Transformer::Stream {
  struct Names {
    parallel::TokenRows tokens;
    const char *q, *k, *v, *norm_q, *norm_k, *out, *mlp;
  };
  static constexpr Names kImage{
      parallel::TokenRows::kImage, "to_q", "to_k", "to_v", "norm_q", "norm_k", "to_out.0", "ff"};
  static constexpr Names kText{parallel::TokenRows::kText,
                               "add_q_proj",
                               "add_k_proj",
                               "add_v_proj",
                               "norm_added_q",
                               "norm_added_k",
                               "to_add_out",
                               "ff_context"};

  Stream(const ParamScope& scope, const Names& names, const Flux2Config& config)
      : eps(config.eps),
        qkv(scope / "attn", config.width(),
            {{names.q, config.width()}, {names.k, config.width()}, {names.v, config.width()}}, Column(names.tokens)),
        norm_q((scope.OfHeads() / "attn" / names.norm_q).Add("weight", {config.head_dim})),
        norm_k((scope.OfHeads() / "attn" / names.norm_k).Add("weight", {config.head_dim})),
        out(scope / "attn" / names.out, config.width(), config.width(), Row(names.tokens)),
        mlp_in(scope / names.mlp / "linear_in", config.width(), 2 * config.mlp_width,
               Column(names.tokens, {config.mlp_width, config.mlp_width})),
        mlp_out(scope / names.mlp / "linear_out", config.mlp_width, config.width(), Row(names.tokens)) {}

  // The modulations are shift, scale and gate of the attention, then of the MLP.
  parallel::Projection Project(const at::Tensor& x, const AllRows& rows,
                               const parallel::ForwardContext& context) const {
    return {.packed = qkv.Forward(Modulated(qkv, rows, x, 0, eps, context), context),
            .query_norm = {.weight = norm_q, .bias = {}, .eps = eps},
            .key_norm = {.weight = norm_k, .bias = {}, .eps = eps},
            .rotary = {}};
  }

  // Adds the attention's result for this stream's tokens and the MLP to x.
  at::Tensor Finish(const at::Tensor& x, const at::Tensor& attended, const AllRows& rows,
                    const parallel::ForwardContext& context) const {
    const at::Tensor y = out.Forward(attended, context);
    at::Tensor sum;
    ProductInput normalised;
    if (rows.size() == 1) {
      const std::span<const at::Tensor> m = rows[0].m;
      std::tie(sum, normalised) = GatedResidualNormModulateFor(mlp_in, x, m[2], y, m[3], m[4], eps, context);
    } else {
      sum = Gated(rows, x, 2, y);
      normalised = Modulated(mlp_in, rows, sum, 3, eps, context);
    }
    const auto [gate, value] = Halves(mlp_in.Forward(normalised, context));
    return Gated(rows, sum, 5, mlp_out.Forward(SwiGluFor(mlp_out, gate, value, context), context));
  }

  double eps;
  Linear qkv;
  at::Tensor norm_q, norm_k;  // [d]
  Linear out, mlp_in, mlp_out;
};

struct Flux2Transformer::DoubleBlock {
  DoubleBlock(const ParamScope& scope, const Flux2Config& config)
      : image(scope, Stream::kImage, config), text(scope, Stream::kText, config) {}
  Stream image, text;
};

struct Flux2Transformer::SingleBlock {
  static constexpr parallel::TokenRows kAll = parallel::TokenRows::kTextThenImage;

  SingleBlock(const ParamScope& scope, const Flux2Config& config)
      : heads_width(scope.table().shard().count(config.width(), {})),
        qkv_mlp(scope / "attn.to_qkv_mlp_proj", config.width(), 3 * config.width() + 2 * config.mlp_width,
                Column(kAll, {config.width(), config.width(), config.width(), config.mlp_width, config.mlp_width})),
        norm_q((scope.OfHeads() / "attn.norm_q").Add("weight", {config.head_dim})),
        norm_k((scope.OfHeads() / "attn.norm_k").Add("weight", {config.head_dim})),
        out(scope / "attn.to_out", config.width() + config.mlp_width, config.width(),
            Row(kAll, {config.width(), config.mlp_width})) {}

  int64_t heads_width;        // h·d
  Linear qkv_mlp;             // queries, keys, values, and gate and value of the MLP
  at::Tensor norm_q, norm_k;  // [d]
  Linear out;                 // of [attention, MLP]
};

Flux2Transformer::Flux2Transformer(const Flux2Config& config, ParamTable& table)
    : config_(config),
      dtype_(table.dtype()),
      image_in_(ParamScope(table) / "x_embedder", config.channels, config.width(), Plain()),
      text_in_(ParamScope(table).OfConditioning() / "context_embedder", config.text_width, config.width(), Plain()),
      timestep_embedder_(ParamScope(table).OfConditioning() / "time_guidance_embed.timestep_embedder",
                         config.sinusoid_channels, config.width(), config.width(), /*bias=*/false),
      image_modulation_(ParamScope(table).OfConditioning() / "double_stream_modulation_img.linear", config.width(),
                        kOfImage * config.width(), Plain()),
      text_modulation_(ParamScope(table).OfConditioning() / "double_stream_modulation_txt.linear", config.width(),
                       kOfText * config.width(), Plain()),
      single_modulation_(ParamScope(table).OfConditioning() / "single_stream_modulation.linear", config.width(),
                         kOfSingle * config.width(), Plain()),
      output_modulation_(ParamScope(table).OfConditioning() / "norm_out.linear", config.width(),
                         kOfHead * config.width(), Plain()),
      output_projection_(ParamScope(table) / "proj_out", config.width(), config.channels, Plain()) {
  const ParamScope root(table);
  if (config.guidance) {
    guidance_embedder_.emplace(root.OfConditioning() / "time_guidance_embed.guidance_embedder",
                               config.sinusoid_channels, config.width(), config.width(), /*bias=*/false);
  }
  for (int64_t i = 0; i < config.double_blocks; ++i) {
    table.EnterBlock(i);
    double_blocks_.emplace_back(root / "transformer_blocks" / i, config);
  }
  for (int64_t i = 0; i < config.single_blocks; ++i) {
    table.EnterBlock(config.double_blocks + i);
    single_blocks_.emplace_back(root / "single_transformer_blocks" / i, config);
  }
  table.LeaveBlock();
}

Flux2Transformer::~Flux2Transformer() = default;

// Text token k is at (0, 0, 0, k), image tokens are at (0, row, column, 0), and those of reference i, from 0, at (10 i
// + 10, row, column, 0).
Positions Flux2Transformer::Place(TokenGrid grid, int64_t, at::Device device) const {
  return PlaceGrid(grid, /*picture=*/0, device);
}

Positions Flux2Transformer::PlaceReferences(std::span<const TokenGrid> grids, at::Device device) const {
  std::vector<Positions> pictures;
  for (const TokenGrid& grid : grids) {
    if (base::Planted("flux2_references_at_the_image")) {
      pictures.push_back(PlaceGrid(grid, 0, device));
      continue;
    }
    pictures.push_back(PlaceGrid(grid, kPictureStep * (static_cast<int64_t>(pictures.size()) + 1), device));
  }
  return Join(pictures);
}

Positions Flux2Transformer::PlaceGrid(TokenGrid grid, int64_t picture, at::Device device) const {
  const at::TensorOptions fp64(at::kDouble);
  const auto axis = [&](const at::Tensor& positions, int64_t index) {
    return RotaryAngles(positions, config_.axes[index], config_.theta);
  };
  const auto same = [&](double position, int64_t index) {
    return axis(at::full({1}, position, fp64), index).expand({grid.count(), -1});
  };
  const at::Tensor rows = RepeatOverColumns(axis(at::arange(grid.height, fp64), 1), grid.width),
                   columns = RepeatOverRows(axis(at::arange(grid.width, fp64), 2), grid.height);
  return RotaryPositions(at::cat({same(static_cast<double>(picture), 0), rows, columns, same(0, 3)}, 1),
                         AccumulationType(dtype_), device);
}

Positions Flux2Transformer::PlaceText(int64_t tokens, TokenGrid, at::Device device) const {
  const at::TensorOptions fp64(at::kDouble);
  if (base::Planted("flux2_text_at_one_place")) {
    return RotaryPositions(at::zeros({tokens, config_.head_dim / 2}, fp64), AccumulationType(dtype_), device);
  }
  const int64_t last = config_.axes[3];
  const at::Tensor angles = at::cat({at::zeros({tokens, (config_.head_dim - last) / 2}, fp64),
                                     RotaryAngles(at::arange(tokens, fp64), last, config_.theta)},
                                    1);
  return RotaryPositions(angles, AccumulationType(dtype_), device);
}

// The reference divides the timestep by 1000 and multiplies it again, so it is rounded twice, and the guidance scale
// once.
at::Tensor Flux2Transformer::SinusoidOf(const at::Tensor& thousandths) const {
  const at::ScalarType accumulation = AccumulationType(dtype_);
  return Sinusoid(thousandths.to(accumulation) * 1000, accumulation, config_.sinusoid_channels).to(dtype_);
}

PromptState Flux2Transformer::Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                                   const parallel::ForwardContext& context) const {
  PromptState prompt{.text = text_in_.Forward(text.to(dtype_), context), .vector = {}};
  if (guidance_embedder_) prompt.vector = guidance_embedder_->Forward(SinusoidOf(extras.at(0)), context);  // [b, D]
  return prompt;
}

StepEmbedding Flux2Transformer::EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                          const parallel::ForwardContext& context) const {
  const auto embedded = [&](const at::Tensor& at) {
    const at::Tensor sum = timestep_embedder_.Forward(SinusoidOf(at / 1000), context);
    return prompt.defined() ? sum + prompt : sum;
  };
  const at::Tensor sum = embedded(timesteps);
  const at::Tensor activated = kernels::Silu(sum);
  std::vector<at::Tensor> parts = {
      image_modulation_.Forward(activated, context), text_modulation_.Forward(activated, context),
      single_modulation_.Forward(activated, context), output_modulation_.Forward(activated, context)};
  if (config_.isolates_references) {
    const bool moves = base::Planted("flux2_references_at_the_timestep");
    const at::Tensor still = moves ? activated : kernels::Silu(embedded(at::zeros_like(timesteps)));
    parts.push_back(image_modulation_.Forward(still, context));
    parts.push_back(single_modulation_.Forward(still, context));
  }
  return {.vector = sum, .shared = at::cat(parts, -1)};
}

at::Tensor Flux2Transformer::Modulate(int index, const StepEmbedding& step, const parallel::ForwardContext&) const {
  const auto part = [&](int64_t first, int64_t count) {
    return step.shared.narrow(-1, first * config_.width(), count * config_.width());
  };
  constexpr int64_t kSingle = kOfImage + kOfText, kHead = kSingle + kOfSingle, kStill = kHead + kOfHead;
  if (index == num_blocks()) return part(kHead, kOfHead);
  const bool is_single = index >= config_.double_blocks;
  const at::Tensor own = is_single ? part(kSingle, kOfSingle) : part(0, kSingle);
  if (!config_.isolates_references) return own;
  return at::cat({own, is_single ? part(kStill + kOfImage, kOfSingle) : part(kStill, kOfImage)}, -1);
}

at::Tensor Flux2Transformer::Embed(const at::Tensor& patches, const at::Tensor&,
                                   const parallel::ForwardContext& context) const {
  return image_in_.Forward(patches, context);
}

at::Tensor Flux2Transformer::Attend(int index, std::vector<parallel::Projection> projections,
                                    parallel::Projection references, int64_t first, const Conditioning& conditioning,
                                    const parallel::ForwardContext& context) const {
  const auto attend = [&](int attention, std::vector<parallel::Projection> of_tokens, parallel::TokenRows tokens) {
    return context.attention
        .Attend(attention, {.projections = std::move(of_tokens),
                            .head_dim = config_.head_dim,
                            .scale = 1 / std::sqrt(static_cast<double>(config_.head_dim)),
                            .queries = tokens,
                            .keys = tokens})
        .flatten(2);
  };
  const at::Tensor all = attend(index, std::move(projections), parallel::TokenRows::kTextThenImage);
  if (!Isolates(conditioning) || base::Planted("flux2_references_read_all")) return all;
  const at::Tensor own = attend(num_blocks() + index, {std::move(references)}, parallel::TokenRows::kReferences);
  const int64_t after = first + own.size(1);
  return at::cat({all.narrow(1, 0, first), own, all.narrow(1, after, all.size(1) - after)}, 1);
}

void Flux2Transformer::Block(int index, BlockState& state, const Conditioning& conditioning,
                             const parallel::ForwardContext& context) const {
  if (index >= config_.double_blocks) {
    RunSingle(index, state, conditioning, context);
    return;
  }
  MoveReferencesToImage(conditioning.references, state);
  RunDouble(index, state, conditioning, context);
  MoveReferencesToText(conditioning.references, state);
}

void Flux2Transformer::RunDouble(int index, BlockState& state, const Conditioning& conditioning,
                                 const parallel::ForwardContext& context) const {
  const DoubleBlock& block = double_blocks_[static_cast<size_t>(index)];
  const std::vector<at::Tensor> m = Split(conditioning.modulation, config_.width());
  const std::span<const at::Tensor> all(m);
  const int64_t t = state.text.size(1), n = state.image.size(1), r = conditioning.references;
  const AllRows of_text = {{t, all.subspan(kOfImage, kOfText)}};
  AllRows of_image = {{n, all.subspan(0, kOfImage)}};
  if (Isolates(conditioning)) of_image = {{r, all.subspan(kOfImage + kOfText, kOfImage)}, {n - r, of_image[0].m}};
  parallel::Projection text = block.text.Project(state.text, of_text, context),
                       image = block.image.Project(state.image, of_image, context);
  // Between products, tensor ranks may share the tokens out; attention has those of all of them.
  const int64_t text_rows = text.packed.size(1), image_rows = image.packed.size(1);
  text.rotary = RowsOf(conditioning, 0, text_rows);
  image.rotary = RowsOf(conditioning, text_rows, image_rows);
  parallel::Projection references = RowsOf(image, 0, conditioning.attended_references.count());
  const at::Tensor attended =
      Attend(index, {std::move(text), std::move(image)}, std::move(references), text_rows, conditioning, context);
  state.image = block.image.Finish(state.image, attended.narrow(1, text_rows, image_rows), of_image, context);
  state.text = block.text.Finish(state.text, attended.narrow(1, 0, text_rows), of_text, context);
}

void Flux2Transformer::RunSingle(int index, BlockState& state, const Conditioning& conditioning,
                                 const parallel::ForwardContext& context) const {
  const SingleBlock& block = single_blocks_[static_cast<size_t>(index - config_.double_blocks)];
  const std::vector<at::Tensor> m = Split(conditioning.modulation, config_.width());
  const std::span<const at::Tensor> all(m), own = all.subspan(0, kOfSingle);
  const int64_t t = state.text.size(1), n = state.image.size(1), r = conditioning.references;
  AllRows rows = {{t + n, own}};
  if (Isolates(conditioning)) rows = {{t - r, own}, {r, all.subspan(kOfSingle, kOfSingle)}, {n, own}};
  const at::Tensor x = at::cat({state.text, state.image}, 1);  // [b, t + n, D]
  const at::Tensor projected =
      block.qkv_mlp.Forward(Modulated(block.qkv_mlp, rows, x, 0, config_.eps, context), context);
  const int64_t heads = 3 * block.heads_width, mlp = projected.size(-1) - heads;
  parallel::Projection projection{.packed = projected.narrow(-1, 0, heads),
                                  .query_norm = {.weight = block.norm_q, .bias = {}, .eps = config_.eps},
                                  .key_norm = {.weight = block.norm_k, .bias = {}, .eps = config_.eps},
                                  .rotary = RowsOf(conditioning, 0, projected.size(1))};
  const parallel::TokenSpan attended_references = conditioning.attended_references;
  parallel::Projection references = RowsOf(projection, attended_references.begin, attended_references.count());
  const at::Tensor attended =
      Attend(index, {std::move(projection)}, std::move(references), attended_references.begin, conditioning, context);
  const auto [gate, value] = Halves(projected.narrow(-1, heads, mlp));
  const at::Tensor hidden = kernels::SwiGlu(gate, value);
  const at::Tensor y = Gated(rows, x, 2, block.out.Forward(at::cat({attended, hidden}, -1), context));
  state.text = y.narrow(1, 0, t);
  state.image = y.narrow(1, t, y.size(1) - t);
}

at::Tensor Flux2Transformer::Head(const BlockState& state, const Conditioning& conditioning,
                                  const parallel::ForwardContext& context) const {
  // In this norm scale comes before shift.
  const std::vector<at::Tensor> m = conditioning.modulation.chunk(kOfHead, -1);
  return output_projection_.Forward(kernels::LayerNormModulate(state.image, m[1], m[0], config_.eps), context);
}

}  // namespace tessera::models
