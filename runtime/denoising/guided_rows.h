// Turns guidance into rows of forward passes: selects which branches of a batch are computed at a step, groups those
// that one pass can compute together, and combines their predictions.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <string>
#include <vector>

#include "runtime/denoising/denoise_job.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/denoising/position_tables.h"

namespace tessera::runtime {

// A branch of a job, which is one row of a forward pass.
struct GuidedRow {
  size_t job = 0;  // index in the batch
  size_t branch = 0;
  bool operator==(const GuidedRow&) const = default;
};

// Rows that one forward pass can compute together: they have the same skipped blocks, adapters and shapes, and belong
// to one image if images share no pass.
struct RowGroup {
  std::vector<GuidedRow> rows;
  std::vector<int> skipped_blocks;
  std::string adapters;  // AdapterSet::key
  bool operator==(const RowGroup&) const = default;
};

// Returns control::ImagesSharePasses for this device.
bool ImagesSharePasses(at::Device device);

// Returns the rows of each job's next step, branch after branch, for the family's model and device.
std::vector<RowGroup> GroupRows(std::span<DenoiseJob* const> batch, const models::Family& family);

// Returns the forward pass inputs of rows whose images all have the same size, and prepares their branches. Texts are
// padded to the longest one.
ForwardRows ForwardRowsOf(const models::Family& family, std::span<DenoiseJob* const> batch,
                          std::span<const GuidedRow> rows, std::span<const int> skipped_blocks, PositionTables& tables,
                          const parallel::RankGroups& groups);

// Returns the modulation [1, …] of block `block` for each of these rows, at step of_jobs[job] of its job.
std::vector<at::Tensor> ModulationsOf(std::span<DenoiseJob* const> batch, std::span<const GuidedRow> rows, int block,
                                      std::span<const int> of_jobs);

// Returns the predictions of job `job`'s branches at its step `step` with their weights, in the order of the branches;
// these are the input of its sampler. predictions[g] [rows of group g, c, h, w]. The results are [c, h, w]; if the
// job's guidance rescales, it is one prediction of the whole image.
std::vector<WeightedPrediction> GuidedPredictions(std::span<DenoiseJob* const> batch, size_t job, int step,
                                                  std::span<const RowGroup> groups,
                                                  std::span<const at::Tensor> predictions);

// Returns the weighted sum of the predictions.
at::Tensor SumOf(std::span<const WeightedPrediction> predictions);

}  // namespace tessera::runtime
