#include "models/text_encoders/qwen_vision.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "kernels/ops.h"
#include "models/layers/rotary.h"
#include "models/precision.h"

// Shapes: n patches of all pictures, h heads, d head_dim, D width.

namespace tessera::models {
namespace {

constexpr double kTowerEps = 1e-6;  // whatever the configuration says
constexpr double kTowerTheta = 10000;

// The tower's name in files, and that of transformers 5.
constexpr char kTower[] = "visual.", kTowerAlias[] = "model.visual.";

at::Tensor AddVector(ParamTable& table, const std::string& name, int64_t size) {
  return table.Add({.name = kTower + name, .shape = {size}, .aliases = {kTowerAlias + name}});
}

// A product of the tower.
Linear TowerProduct(ParamTable& table, const std::string& name, int64_t in, int64_t out) {
  return Linear(ParamScope(table), in, {{kTower + name, out, {kTowerAlias + name}}});
}

// softmax(q kᵀ / √d) v within runs of consecutive tokens of these lengths. q, k, v [n, h, d] → [n, h·d].
at::Tensor AttendInRuns(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                        std::span<const int64_t> lengths) {
  std::vector<at::Tensor> read;
  int64_t first = 0;
  for (size_t i = 0; i < lengths.size();) {
    // Runs of one length are a batch.
    size_t end = i + 1;
    while (end < lengths.size() && lengths[end] == lengths[i]) ++end;
    const int64_t runs = static_cast<int64_t>(end - i);
    const auto batch = [&](const at::Tensor& x) {
      return x.narrow(0, first, runs * lengths[i]).unflatten(0, {runs, lengths[i]});
    };
    const double scale = 1 / std::sqrt(static_cast<double>(q.size(2)));
    read.push_back(kernels::Attention(batch(q), batch(k), batch(v), std::nullopt, scale).flatten(0, 1).flatten(1));
    first += runs * lengths[i];
    i = end;
  }
  return at::cat(read);
}

}  // namespace

QwenVision::Layer::Layer(ParamTable& table, const std::string& name, const VisionConfig& config)
    : attention_norm(AddVector(table, name + "norm1.weight", config.width)),
      mlp_norm(AddVector(table, name + "norm2.weight", config.width)),
      qkv(TowerProduct(table, name + "attn.qkv", config.width, 3 * config.width)),
      out(TowerProduct(table, name + "attn.proj", config.width, config.width)),
      gate_and_value(ParamScope(table), config.width,
                     {{kTower + name + "mlp.gate_proj", config.hidden, {kTowerAlias + name + "mlp.gate_proj"}},
                      {kTower + name + "mlp.up_proj", config.hidden, {kTowerAlias + name + "mlp.up_proj"}}}),
      mlp_out(TowerProduct(table, name + "mlp.down_proj", config.hidden, config.width)) {}

QwenVision::QwenVision(const VisionConfig& config, int64_t first_block, ParamTable& table)
    : config_(config),
      first_block_(first_block),
      patch_in_(table.Add({.name = absl::StrCat(kTower, "patch_embed.proj.weight"),
                           .shape = {config.width, config.channels, config.frames, config.patch, config.patch},
                           .aliases = {absl::StrCat(kTowerAlias, "patch_embed.proj.weight")}})),
      merger_norm_(AddVector(table, "merger.ln_q.weight", config.width)),
      merger_in_(TowerProduct(table, "merger.mlp.0", kMerge * kMerge * config.width, kMerge * kMerge * config.width)),
      merger_out_(TowerProduct(table, "merger.mlp.2", kMerge * kMerge * config.width, config.out_width)) {
  for (int64_t i = 0; i < config.layers; ++i) {
    table.EnterBlock(first_block + i);
    layers_.emplace_back(table, absl::StrCat("blocks.", i, "."), config);
    table.LeaveBlock();
  }
}

at::Tensor QwenVision::Forward(std::span<const EncoderPicture> pictures, WeightResidency* weights,
                               const parallel::ForwardContext& context, const VisionRecorder& record) const {
  std::vector<PatchGrid> grids;
  std::vector<at::Tensor> patches;
  std::vector<int64_t> whole;  // patches of each picture
  for (const EncoderPicture& picture : pictures) {
    grids.push_back(picture.grid);
    patches.push_back(picture.patches);
    whole.push_back(picture.grid.patches());
  }
  const at::Tensor values = at::cat(patches).to(patch_in_.options());
  const auto recorded = [&](const std::string& part, const at::Tensor& result) {
    if (record) record(part, result);
    return result;
  };
  at::Tensor x = recorded("patch_embed", kernels::LinearProduct(values, patch_in_.flatten(1), std::nullopt));  // [n, D]

  const VisionWindows windows = WindowsOf(grids, config_.window);
  std::vector<int64_t> in_windows;  // patches of each window
  for (const int64_t units : windows.units) in_windows.push_back(kMerge * kMerge * units);
  const at::Tensor units = at::tensor(windows.order, at::kLong);
  const at::Tensor order =
      (units.unsqueeze(1) * (kMerge * kMerge) + at::arange(kMerge * kMerge, at::kLong)).flatten();  // [n]
  const PatchPositions positions = PositionsOfPatches(grids);
  const int64_t head_dim = config_.width / config_.heads;
  const auto angles = [&](const std::vector<int64_t>& axis) {
    return RotaryAngles(at::tensor(axis, at::kDouble).index_select(0, order), head_dim / 2, kTowerTheta);
  };
  const Positions tables = RotaryPositions(at::cat({angles(positions.rows), angles(positions.columns)}, 1),
                                           AccumulationType(x.scalar_type()), x.device());
  x = x.index_select(0, order.to(x.device()));

  for (int64_t i = 0; i < config_.layers; ++i) {
    const BroughtPart brought(weights, static_cast<int>(first_block_ + i));
    const Layer& layer = layers_[static_cast<size_t>(i)];
    const at::Tensor packed = layer.qkv.Forward(kernels::RmsNorm(x, layer.attention_norm, kTowerEps), context);
    const std::vector<at::Tensor> qkv = packed.unflatten(1, {3, config_.heads, head_dim}).unbind(1);  // [n, h, d]
    const auto rotated = [&](const at::Tensor& heads) { return RotateHalves(heads.unsqueeze(0), tables).squeeze(0); };
    const bool is_full = std::ranges::find(config_.full_layers, i) != config_.full_layers.end() ||
                         base::Planted("vision_without_windows");
    const at::Tensor read = AttendInRuns(rotated(qkv[0]), rotated(qkv[1]), qkv[2], is_full ? whole : in_windows);
    x = x + layer.out.Forward(read, context);
    const std::vector<at::Tensor> parts =
        layer.gate_and_value.Forward(kernels::RmsNorm(x, layer.mlp_norm, kTowerEps), context).chunk(2, 1);
    x = recorded(absl::StrCat("block.", i), x + layer.mlp_out.Forward(kernels::SwiGlu(parts[0], parts[1]), context));
  }
  const at::Tensor joined = kernels::RmsNorm(x, merger_norm_, kTowerEps).view({-1, kMerge * kMerge * config_.width});
  const at::Tensor merged =
      recorded("merger", merger_out_.Forward(kernels::Gelu(merger_in_.Forward(joined, context)), context));
  if (base::Planted("units_in_the_order_of_windows")) return merged;
  return merged.index_select(0, units.argsort().to(x.device()));
}

}  // namespace tessera::models
