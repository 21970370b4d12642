#include "runtime/denoiser.h"

#include <algorithm>
#include <map>
#include <stdexcept>
#include <tuple>

#include "kernels/planted.h"
#include "models/guidance.h"
#include "models/precision.h"
#include "runtime/mesh_forward.h"

namespace tessera {
namespace {

// One row of a forward pass: a branch of a job, and what its prediction counts for.
struct Row {
  size_t job;
  size_t branch;
  double weight;
  const ConditioningRow* conditioning;
};

// Rows that one forward pass can take together.
using Group = std::vector<Row>;

// The rows of this step, branch after branch, in groups of the same skipped blocks and shapes.
std::vector<Group> GroupRows(std::span<DenoiseJob* const> batch, bool masks_padding) {
  using Key = std::tuple<std::vector<int>, int64_t, std::vector<std::vector<int64_t>>>;
  std::map<Key, Group> groups;
  size_t branches = 0;
  for (const DenoiseJob* job : batch) branches = std::max(branches, job->guidance.branches.size());
  for (size_t b = 0; b < branches; ++b) {
    for (size_t j = 0; j < batch.size(); ++j) {
      if (b >= batch[j]->guidance.branches.size()) continue;
      const GuidanceBranch& branch = batch[j]->guidance.branches[b];
      const std::optional<double> weight = branch.WeightAt(batch[j]->sampler->step(), batch[j]->sampler->num_steps());
      if (!weight) continue;
      std::vector<std::vector<int64_t>> shapes;
      for (const at::Tensor& extra : branch.row.extras) shapes.push_back(extra.sizes().vec());
      const int64_t tokens = masks_padding || !branch.row.text.defined() ? 0 : branch.row.text.size(0);
      groups[{branch.skipped_blocks, tokens, shapes}].push_back(
          {.job = j, .branch = b, .weight = *weight, .conditioning = &branch.row});
    }
  }
  std::vector<Group> result;
  for (auto& [key, group] : groups) result.push_back(std::move(group));
  return result;
}

// Text padded to the longest of the rows, with a mask where that made padding; extras as they are.
void StackConditioning(const Group& rows, at::ScalarType island, TransformerInput& input) {
  for (size_t e = 0; e < rows[0].conditioning->extras.size(); ++e) {
    std::vector<at::Tensor> values;
    for (const Row& row : rows) values.push_back(row.conditioning->extras[e]);
    input.extras.push_back(at::stack(values));
  }
  if (!rows[0].conditioning->text.defined()) return;
  int64_t longest = 0, shortest = rows[0].conditioning->text.size(0);
  for (const Row& row : rows) {
    longest = std::max(longest, row.conditioning->text.size(0));
    shortest = std::min(shortest, row.conditioning->text.size(0));
  }
  std::vector<at::Tensor> text, mask;
  for (const Row& row : rows) {
    const at::Tensor& tokens = row.conditioning->text;
    const int64_t count = tokens.size(0);
    text.push_back(at::constant_pad_nd(tokens, {0, 0, 0, longest - count}));
    mask.push_back(at::constant_pad_nd(at::ones({count}, tokens.options().dtype(island)), {0, longest - count}));
  }
  input.text = at::stack(text);
  if (longest != shortest) input.text_mask = at::stack(mask);
}

// The transformer's output for these rows, [rows, n, features] in max(fp32, dtype). patches [jobs, n, features].
at::Tensor ForwardRows(const Family& family, std::span<DenoiseJob* const> batch, const Group& rows,
                       const at::Tensor& patches, const RankGroups& groups) {
  const at::ScalarType island = IslandType(family.dtype());
  const TokenGrid& grid = batch[0]->geometry.grid;
  std::vector<int64_t> jobs;
  std::vector<double> timesteps;
  for (const Row& row : rows) {
    jobs.push_back(static_cast<int64_t>(row.job));
    timesteps.push_back(batch[row.job]->sampler->timestep());
  }
  const at::Tensor index = at::tensor(jobs, at::kLong).to(patches.device());
  TransformerInput input{.patches = patches.index_select(0, index),
                         .grid = grid,
                         .span = {.begin = 0, .end = grid.count()},
                         .timestep = at::tensor(timesteps, at::kDouble).to(family.device())};
  StackConditioning(rows, island, input);
  const std::vector<int>& skipped = batch[rows[0].job]->guidance.branches[rows[0].branch].skipped_blocks;
  return ForwardOnMesh(family.transformer(), input, groups, skipped).to(island);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Sampler>> MakeSampler(const SamplerConfig& config, int steps, const Family& family,
                                                     const LatentGeometry& geometry) {
  ScheduleOptions options;
  if (config.use_dynamic_shifting) options.mu = DynamicShiftMu(config, geometry.grid.count());
  if (config.sampler == SamplerClass::kFlowEuler && family.flow_sigmas() == FlowSigmas::kLinear && steps > 0) {
    std::vector<double> sigmas(static_cast<size_t>(steps));
    // numpy's linspace: start + i · step, with the last value exact.
    const double last = 1.0 / steps, step = steps > 1 ? (last - 1.0) / (steps - 1) : 0;
    for (int i = 0; i < steps; ++i) sigmas[i] = i * step + 1.0;
    if (steps > 1) sigmas.back() = last;
    options.sigmas = std::move(sigmas);
  }
  return Sampler::Create(config, steps, options);
}

void DrawInitialLatents(DenoiseJob& job, const Family& family) {
  const LatentGeometry& g = job.geometry;
  const at::Tensor noise = job.noise->Initial({g.channels, g.height, g.width}, IslandType(family.dtype()));
  job.latents = (noise * job.sampler->init_noise_sigma()).to(family.device());
}

std::vector<at::Tensor> Predict(const Family& family, std::span<DenoiseJob* const> batch, const RankGroups& groups) {
  const LatentGeometry& geometry = batch[0]->geometry;
  const at::ScalarType island = IslandType(family.dtype());
  std::vector<at::Tensor> scaled;
  for (const DenoiseJob* job : batch) scaled.push_back(job->sampler->ScaleInput(job->latents.unsqueeze(0)));
  const at::Tensor patches = family.ToPatches(at::cat(scaled)).to(family.dtype());  // [jobs, n, features]

  // Predictions by job, in the order of its branches.
  std::vector<std::map<size_t, std::pair<double, at::Tensor>>> terms(batch.size());
  for (const Group& rows : GroupRows(batch, family.masks_padding())) {
    // Every rank of the cfg axis computes its share of the rows, and all of them combine all rows in one order.
    const std::vector<int64_t> shares = EvenRows(static_cast<int64_t>(rows.size()), groups.cfg.size());
    const auto mine = static_cast<size_t>(groups.cfg.rank());
    int64_t first = 0;
    for (size_t r = 0; r < mine; ++r) first += shares[r];
    const Group own(rows.begin() + first, rows.begin() + first + shares[mine]);
    at::Tensor predictions = at::empty({0, geometry.channels, geometry.height, geometry.width},
                                       at::TensorOptions(island).device(family.device()));
    if (!own.empty()) predictions = family.ToPrediction(ForwardRows(family, batch, own, patches, groups), geometry);
    predictions = groups.cfg.AllGather(predictions, shares);  // [rows, c, h, w]
    if (Planted("guidance_halves_swapped")) predictions = predictions.flip(0);
    for (size_t r = 0; r < rows.size(); ++r) {
      terms[rows[r].job][rows[r].branch] = {rows[r].weight, predictions[static_cast<int64_t>(r)]};
    }
  }

  std::vector<at::Tensor> guided;
  for (size_t j = 0; j < batch.size(); ++j) {
    at::Tensor sum;
    for (const auto& [branch, term] : terms[j]) {
      const at::Tensor weighted = term.second * term.first;
      sum = sum.defined() ? sum + weighted : weighted;
    }
    const Guidance& guidance = batch[j]->guidance;
    if (guidance.rescale > 0 && terms[j].size() > 1) {
      sum = RescaleGuidance(sum, terms[j].at(guidance.conditional).second, guidance.rescale);
    }
    guided.push_back(sum);
  }
  return guided;
}

void Denoiser::Step(std::span<DenoiseJob* const> batch) {
  const std::vector<at::Tensor> predictions = Predict(family_, batch, groups_);
  for (size_t j = 0; j < batch.size(); ++j) {
    DenoiseJob& job = *batch[j];
    at::Tensor noise;
    if (job.sampler->needs_noise()) {
      noise = job.noise->ForStep(job.sampler->step(), job.latents.sizes(), job.latents.scalar_type())
                  .to(job.latents.device())
                  .unsqueeze(0);
    }
    if (Planted("noise_per_rank") && noise.defined()) noise = noise.roll(groups_.sequence.rank(), 1);
    job.latents = job.sampler->Step(job.latents.unsqueeze(0), predictions[j].unsqueeze(0), noise).squeeze(0);
    if (!at::isfinite(job.latents).all().item<bool>()) throw std::runtime_error("the latents are no longer finite");
  }
}

}  // namespace tessera
