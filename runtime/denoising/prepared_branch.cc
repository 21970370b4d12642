#include "runtime/denoising/prepared_branch.h"

#include <algorithm>
#include <utility>

namespace tessera::runtime {

PreparedBranch::PreparedBranch(const models::Transformer& transformer, const models::ConditioningRow& row,
                               std::span<const at::Tensor> references, const at::Tensor& timesteps,
                               models::SharedAdapters adapters, const parallel::RankGroups& groups)
    : transformer_(transformer),
      adapters_(std::move(adapters)),
      context_{.attention = no_attention_,
               .tensor = groups.tensor,
               .world = groups.world,
               .adapters = models::AdaptersOf(adapters_, "transformer")},
      timesteps_(timesteps) {
  std::vector<at::Tensor> extras;
  for (const at::Tensor& extra : row.extras) extras.push_back(extra.unsqueeze(0));
  const models::PromptState prompt =
      transformer.Read(row.text.defined() ? row.text.unsqueeze(0) : at::Tensor(), extras, context_);
  if (prompt.text.defined()) text_ = prompt.text.squeeze(0);
  for (const at::Tensor& reference : references) {
    text_ = at::cat({text_, transformer.Embed(reference.unsqueeze(0), {}, context_).squeeze(0)});
  }
  vector_ = prompt.vector;
}

at::Tensor PreparedBranch::Modulation(int block, int64_t step) {
  const int64_t first = step - step % kStepsAtOnce;
  if (first != first_) {
    const int64_t count = std::min(kStepsAtOnce, timesteps_.size(0) - first);
    steps_ = transformer_.EmbedStep(timesteps_.narrow(0, first, count), vector_, context_);
    blocks_.assign(static_cast<size_t>(transformer_.num_blocks()) + 1, {});
    first_ = first;
  }
  at::Tensor& of_block = blocks_[static_cast<size_t>(block)];
  if (!of_block.defined()) of_block = transformer_.Modulate(block, steps_, context_);
  return of_block.narrow(0, step - first, 1);
}

}  // namespace tessera::runtime
