// Guidance as rows of forward passes: which branches of a batch are computed at a step, which of them one pass can take
// together, and what their predictions make.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <string>
#include <vector>

#include "runtime/denoising/denoise_job.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/denoising/position_tables.h"

namespace tessera::runtime {

// A branch of a job: one row of a forward pass.
struct GuidedRow {
  size_t job = 0;  // index in the batch
  size_t branch = 0;
  bool operator==(const GuidedRow&) const = default;
};

// Rows that one forward pass can take together: of the same skipped blocks, adapters and shapes, and of one image where
// images share no pass.
struct RowGroup {
  std::vector<GuidedRow> rows;
  std::vector<int> skipped_blocks;
  std::string adapters;  // AdapterSet::key
  bool operator==(const RowGroup&) const = default;
};

// As control::ImagesSharePasses says of this device.
bool ImagesSharePasses(at::Device device);

// The rows of the next step of each job, branch after branch, for a model and device of that family.
std::vector<RowGroup> GroupRows(std::span<DenoiseJob* const> batch, const models::Family& family);

// What forward passes see of such rows of jobs whose images are of one size; prepares their branches. Texts are padded
// to the longest of them.
ForwardRows ForwardRowsOf(const models::Family& family, std::span<DenoiseJob* const> batch,
                          std::span<const GuidedRow> rows, std::span<const int> skipped_blocks, PositionTables& tables,
                          const parallel::RankGroups& groups);

// The modulation [1, …] of block `block` for each of these rows, at step of_jobs[job] of its job.
std::vector<at::Tensor> ModulationsOf(std::span<DenoiseJob* const> batch, std::span<const GuidedRow> rows, int block,
                                      std::span<const int> of_jobs);

// What the sampler of job `job` is given at step `step` of it: its branches' predictions and what they weigh, in the
// order of the branches. predictions[g] [rows of group g, c, h, w]; in the result [c, h, w], one of the whole image if
// the job's guidance rescales.
std::vector<WeightedPrediction> GuidedPredictions(std::span<DenoiseJob* const> batch, size_t job, int step,
                                                  std::span<const RowGroup> groups,
                                                  std::span<const at::Tensor> predictions);

// Their sum.
at::Tensor SumOf(std::span<const WeightedPrediction> predictions);

}  // namespace tessera::runtime
