#include "runtime/denoising/guided_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <ranges>
#include <tuple>
#include <utility>

#include "base/macros/planted.h"
#include "control/host/device.h"
#include "kernels/ops.h"
#include "models/families/guidance.h"

namespace tessera::runtime {
namespace {

// The texts of the rows of one pass.
struct StackedText {
  at::Tensor text;  // [rows, t, D], zero-padded to the longest text, and to a multiple of kBiasStep if there is a bias
  at::Tensor bias;  // [rows, t] as in Conditioning, in their dtype; undefined if all texts have the same length
};

// On a device, attention needs rows of the bias to begin at multiples of 16 bytes and would otherwise copy the bias in
// every block. Fewer distinct lengths also need fewer graphs.
constexpr int64_t kBiasStep = 8;

// texts [t, D] each, or all undefined.
StackedText StackTexts(std::span<const at::Tensor> texts) {
  if (!texts.front().defined()) return {};
  const auto [shortest, longest] =
      std::ranges::minmax(texts | std::views::transform([](const at::Tensor& text) { return text.size(0); }));
  const int64_t step = longest == shortest || texts.front().is_cpu() ? 1 : kBiasStep;
  const int64_t length = (longest + step - 1) / step * step;
  std::vector<at::Tensor> text, mask;
  for (const at::Tensor& tokens : texts) {
    const int64_t padding = length - tokens.size(0);
    text.push_back(at::constant_pad_nd(tokens, {0, 0, 0, padding}));
    mask.push_back(at::constant_pad_nd(at::ones({tokens.size(0)}, tokens.options()), {0, padding}));
  }
  StackedText stacked{.text = at::stack(text), .bias = {}};
  if (longest != shortest) stacked.bias = models::MaskedTextBias(at::stack(mask), stacked.text.scalar_type());
  return stacked;
}

}  // namespace

bool ImagesSharePasses(at::Device device) {
  return control::ImagesSharePasses(device.is_cpu() ? control::DeviceKind::kCpu : control::DeviceKind::kCuda);
}

std::vector<RowGroup> GroupRows(std::span<DenoiseJob* const> batch, const models::Family& family) {
  using Key = std::tuple<std::string, std::vector<int>, int64_t, std::vector<std::vector<int64_t>>, size_t>;
  const bool share = ImagesSharePasses(family.device()) || base::Planted("images_share_passes_on_a_device");
  std::map<Key, RowGroup> groups;
  size_t branches = 0;
  for (const DenoiseJob* job : batch) branches = std::max(branches, job->guidance.branches.size());
  for (size_t b = 0; b < branches; ++b) {
    for (size_t j = 0; j < batch.size(); ++j) {
      if (b >= batch[j]->guidance.branches.size()) continue;
      const models::GuidanceBranch& branch = batch[j]->guidance.branches[b];
      if (!branch.WeightAt(batch[j]->next_step, batch[j]->sampler->num_steps(),
                           batch[j]->sampler->timestep(batch[j]->next_step)))
        continue;
      std::vector<std::vector<int64_t>> shapes;
      for (const at::Tensor& extra : branch.row.extras) shapes.push_back(extra.sizes().vec());
      for (const models::TokenGrid& grid : batch[j]->reference_grids) shapes.push_back({grid.height, grid.width});
      const int64_t tokens = family.masks_padding() || !branch.row.text.defined() ? 0 : branch.row.text.size(0);
      const models::SharedAdapters& set = batch[j]->adapters;
      const std::string adapters = set == nullptr ? "" : set->key;
      RowGroup& group = groups[{adapters, branch.skipped_blocks, tokens, shapes, share ? 0 : j}];
      group.skipped_blocks = branch.skipped_blocks;
      group.adapters = adapters;
      group.rows.push_back({.job = j, .branch = b});
    }
  }
  std::vector<RowGroup> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

ForwardRows ForwardRowsOf(const models::Family& family, std::span<DenoiseJob* const> batch,
                          std::span<const GuidedRow> rows, std::span<const int> skipped_blocks, PositionTables& tables,
                          const parallel::RankGroups& groups) {
  std::vector<at::Tensor> texts;
  for (const GuidedRow& row : rows) {
    texts.push_back(PrepareBranch(*batch[row.job], row.branch, family, groups).text());
  }
  const StackedText stacked = StackTexts(texts);
  const models::LatentGeometry& geometry = batch[0]->geometry;
  const at::Tensor none =
      at::empty({static_cast<int64_t>(rows.size()), geometry.channels, geometry.height, geometry.width},
                at::TensorOptions(family.dtype()).device(at::kMeta));
  std::vector<int64_t> shape = family.ToPatches(none).sizes().vec();
  shape[1] = 0;
  const DenoiseJob& first = *batch[rows.front().job];
  const int64_t text =
      models::JointTokens(family.transformer(), stacked.text) - models::TokensOf(first.reference_grids);
  if (first.condition.defined()) shape[2] += first.condition.size(1);
  return {.grid = geometry.grid,
          .positions = tables.Of(geometry.grid, text),
          .text = stacked.text,
          .references = first.reference_grids,
          .text_bias = stacked.bias,
          .patches = at::empty(shape, at::TensorOptions(family.dtype()).device(family.device())),
          .skipped_blocks = {skipped_blocks.begin(), skipped_blocks.end()},
          .adapters = first.adapters};
}

std::vector<at::Tensor> ModulationsOf(std::span<DenoiseJob* const> batch, std::span<const GuidedRow> rows, int block,
                                      std::span<const int> of_jobs) {
  std::vector<at::Tensor> of_rows;
  for (const GuidedRow& row : rows) {
    of_rows.push_back(batch[row.job]->prepared[row.branch]->Modulation(block, of_jobs[row.job]));
  }
  return of_rows;
}

std::vector<WeightedPrediction> GuidedPredictions(std::span<DenoiseJob* const> batch, size_t job, int step,
                                                  std::span<const RowGroup> groups,
                                                  std::span<const at::Tensor> predictions) {
  const models::Guidance& guidance = batch[job]->guidance;
  std::map<size_t, at::Tensor> by_branch;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t r = 0; r < groups[g].rows.size(); ++r) {
      const GuidedRow& row = groups[g].rows[r];
      if (row.job == job) by_branch[row.branch] = predictions[g][static_cast<int64_t>(r)];
    }
  }
  std::vector<WeightedPrediction> guided;
  for (const auto& [branch, prediction] : by_branch) {
    const std::optional<double> weight =
        guidance.branches[branch].WeightAt(step, batch[job]->sampler->num_steps(), batch[job]->sampler->timestep(step));
    guided.push_back({prediction, weight.value()});
  }
  if (guidance.rescale > 0 && guided.size() > 1) {
    guided = {{models::RescaleGuidance(SumOf(guided), by_branch.at(guidance.conditional), guidance.rescale)}};
  }
  if (guidance.norm_limit > 0 && guided.size() > 1) {
    guided = {{models::LimitNorm(SumOf(guided), by_branch.at(guidance.conditional), guidance.norm_limit)}};
  }
  if (guidance.kept_norm_patch > 0 && guided.size() > 1) {
    guided = {{models::KeepPatchNorms(SumOf(guided), by_branch.at(guidance.conditional), guidance.kept_norm_patch)}};
  }
  return guided;
}

at::Tensor SumOf(std::span<const WeightedPrediction> predictions) {
  std::vector<at::Tensor> inputs;
  std::vector<double> weights;
  for (const auto& [prediction, weight] : predictions) {
    inputs.push_back(prediction);
    weights.push_back(weight);
  }
  return kernels::WeightedSums(inputs, weights, std::nullopt).front();
}

}  // namespace tessera::runtime
