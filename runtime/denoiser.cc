#include "runtime/denoiser.h"

#include <algorithm>
#include <stdexcept>

#include "models/precision.h"

namespace tessera {
namespace {

// The rows of a batch, in the order [branch][job]: text padded to the longest, with a mask where that made padding.
void StackText(std::span<DenoiseJob* const> batch, at::ScalarType island, TransformerInput& input) {
  std::vector<const TextConditioning*> rows;
  for (size_t branch = 0; branch < batch[0]->branches.size(); ++branch) {
    for (const DenoiseJob* job : batch) rows.push_back(&job->branches[branch].text);
  }
  int64_t longest = 0, shortest = rows[0]->tokens.size(0);
  for (const TextConditioning* row : rows) {
    longest = std::max(longest, row->tokens.size(0));
    shortest = std::min(shortest, row->tokens.size(0));
  }
  std::vector<at::Tensor> text, mask, sizes;
  for (const TextConditioning* row : rows) {
    const int64_t count = row->tokens.size(0);
    text.push_back(at::constant_pad_nd(row->tokens, {0, 0, 0, longest - count}));
    const at::Tensor ones = at::ones({count}, row->tokens.options().dtype(island));
    mask.push_back(at::constant_pad_nd(ones, {0, longest - count}));
    if (row->size_condition.defined()) sizes.push_back(row->size_condition);
  }
  input.text = at::stack(text);
  if (longest != shortest) input.text_mask = at::stack(mask);
  if (!sizes.empty()) input.size_condition = at::stack(sizes);
}

}  // namespace

void DrawInitialLatents(DenoiseJob& job, const Family& family) {
  const LatentGeometry& g = job.geometry;
  const at::Tensor noise = job.noise->Initial({g.channels, g.height, g.width}, IslandType(family.dtype()));
  job.latents = (noise * job.sampler->init_noise_sigma()).to(family.device());
}

std::vector<at::Tensor> Predict(const Family& family, std::span<DenoiseJob* const> batch,
                                const ForwardContext& context) {
  const LatentGeometry& geometry = batch[0]->geometry;
  const at::ScalarType island = IslandType(family.dtype());
  const int64_t branches = static_cast<int64_t>(batch[0]->branches.size());

  std::vector<at::Tensor> latents;
  std::vector<double> timesteps;
  for (const DenoiseJob* job : batch) {
    latents.push_back(job->sampler->ScaleInput(job->latents.unsqueeze(0)));
    timesteps.push_back(job->sampler->timestep());
  }
  TransformerInput input{.patches = family.ToPatches(at::cat(latents)).to(family.dtype()).repeat({branches, 1, 1}),
                         .grid = geometry.grid,
                         .span = {.begin = 0, .end = geometry.grid.count()}};
  input.timestep = at::tensor(timesteps, at::kDouble).to(island).to(family.device()).repeat({branches});
  StackText(batch, island, input);

  const at::Tensor output = RunTransformer(family.transformer(), input, context).to(island);
  const at::Tensor predictions = family.ToPrediction(output, geometry);  // [branches · jobs, c, h, w]
  const int64_t jobs = static_cast<int64_t>(batch.size());
  std::vector<at::Tensor> guided;
  for (int64_t j = 0; j < jobs; ++j) {
    at::Tensor sum;
    for (int64_t k = 0; k < branches; ++k) {
      const at::Tensor term = predictions[k * jobs + j] * batch[j]->branches[k].weight;
      sum = sum.defined() ? sum + term : term;
    }
    guided.push_back(sum);
  }
  return guided;
}

void Denoiser::Step(std::span<DenoiseJob* const> batch) {
  const std::vector<at::Tensor> predictions = Predict(family_, batch, context_);
  for (size_t j = 0; j < batch.size(); ++j) {
    DenoiseJob& job = *batch[j];
    at::Tensor noise;
    if (job.sampler->needs_noise()) {
      noise = job.noise->ForStep(job.sampler->step(), job.latents.sizes(), job.latents.scalar_type())
                  .to(job.latents.device())
                  .unsqueeze(0);
    }
    job.latents = job.sampler->Step(job.latents.unsqueeze(0), predictions[j].unsqueeze(0), noise).squeeze(0);
    if (!at::isfinite(job.latents).all().item<bool>()) throw std::runtime_error("the latents are no longer finite");
  }
}

}  // namespace tessera
