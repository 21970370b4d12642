#include "runtime/denoising/guided_rows.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "models/guidance.h"

namespace tessera::runtime {

std::vector<RowGroup> GroupRows(std::span<DenoiseJob* const> batch, bool masks_padding) {
  using Key = std::tuple<std::vector<int>, int64_t, std::vector<std::vector<int64_t>>>;
  std::map<Key, RowGroup> groups;
  size_t branches = 0;
  for (const DenoiseJob* job : batch) branches = std::max(branches, job->guidance.branches.size());
  for (size_t b = 0; b < branches; ++b) {
    for (size_t j = 0; j < batch.size(); ++j) {
      if (b >= batch[j]->guidance.branches.size()) continue;
      const models::GuidanceBranch& branch = batch[j]->guidance.branches[b];
      if (!branch.WeightAt(batch[j]->next_step, batch[j]->sampler->num_steps())) continue;
      std::vector<std::vector<int64_t>> shapes;
      for (const at::Tensor& extra : branch.row.extras) shapes.push_back(extra.sizes().vec());
      const int64_t tokens = masks_padding || !branch.row.text.defined() ? 0 : branch.row.text.size(0);
      RowGroup& group = groups[{branch.skipped_blocks, tokens, shapes}];
      group.skipped_blocks = branch.skipped_blocks;
      group.rows.push_back({.job = j, .branch = b});
    }
  }
  std::vector<RowGroup> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

models::TransformerInput StackConditioning(std::span<DenoiseJob* const> batch, std::span<const GuidedRow> rows,
                                           at::ScalarType accumulation) {
  const auto conditioning = [&](const GuidedRow& row) -> const models::ConditioningRow& {
    return batch[row.job]->guidance.branches[row.branch].row;
  };
  models::TransformerInput input;
  for (size_t e = 0; e < conditioning(rows[0]).extras.size(); ++e) {
    std::vector<at::Tensor> values;
    for (const GuidedRow& row : rows) values.push_back(conditioning(row).extras[e]);
    input.extras.push_back(at::stack(values));
  }
  if (!conditioning(rows[0]).text.defined()) return input;
  int64_t longest = 0, shortest = conditioning(rows[0]).text.size(0);
  for (const GuidedRow& row : rows) {
    longest = std::max(longest, conditioning(row).text.size(0));
    shortest = std::min(shortest, conditioning(row).text.size(0));
  }
  std::vector<at::Tensor> text, mask;
  for (const GuidedRow& row : rows) {
    const at::Tensor& tokens = conditioning(row).text;
    const int64_t count = tokens.size(0);
    text.push_back(at::constant_pad_nd(tokens, {0, 0, 0, longest - count}));
    mask.push_back(at::constant_pad_nd(at::ones({count}, tokens.options().dtype(accumulation)), {0, longest - count}));
  }
  input.text = at::stack(text);
  if (longest != shortest) input.text_mask = at::stack(mask);
  return input;
}

at::Tensor GuidedPrediction(std::span<DenoiseJob* const> batch, size_t job, int step, std::span<const RowGroup> groups,
                            std::span<const at::Tensor> predictions) {
  const models::Guidance& guidance = batch[job]->guidance;
  std::map<size_t, at::Tensor> by_branch;
  for (size_t g = 0; g < groups.size(); ++g) {
    for (size_t r = 0; r < groups[g].rows.size(); ++r) {
      const GuidedRow& row = groups[g].rows[r];
      if (row.job == job) by_branch[row.branch] = predictions[g][static_cast<int64_t>(r)];
    }
  }
  at::Tensor sum;
  for (const auto& [branch, prediction] : by_branch) {
    const std::optional<double> weight = guidance.branches[branch].WeightAt(step, batch[job]->sampler->num_steps());
    const at::Tensor weighted = prediction * weight.value();
    sum = sum.defined() ? sum + weighted : weighted;
  }
  if (guidance.rescale > 0 && by_branch.size() > 1) {
    sum = models::RescaleGuidance(sum, by_branch.at(guidance.conditional), guidance.rescale);
  }
  return sum;
}

}  // namespace tessera::runtime
