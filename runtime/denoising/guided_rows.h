// Guidance as rows of forward passes: which branches of a batch are computed at a step, which of them one pass can take
// together, and what their predictions make.
#pragma once

#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "runtime/denoising/denoise_job.h"

namespace tessera::runtime {

// A branch of a job: one row of a forward pass.
struct GuidedRow {
  size_t job = 0;  // index in the batch
  size_t branch = 0;
  bool operator==(const GuidedRow&) const = default;
};

// Rows that one forward pass can take together: of the same skipped blocks and shapes.
struct RowGroup {
  std::vector<GuidedRow> rows;
  std::vector<int> skipped_blocks;
  bool operator==(const RowGroup&) const = default;
};

// The rows of the next step of each job, branch after branch. `masks_padding` as the family says.
std::vector<RowGroup> GroupRows(std::span<DenoiseJob* const> batch, bool masks_padding);

// Text, mask and extras of these rows: text padded to the longest of them, with a mask in dtype `accumulation` where
// that made padding; extras as they are. The rest of the input is left out.
models::TransformerInput StackConditioning(std::span<DenoiseJob* const> batch, std::span<const GuidedRow> rows,
                                           at::ScalarType accumulation);

// What the sampler of job `job` is given at step `step` of it: the weighted sum of its branches' predictions, in the
// order of the branches. predictions[g] [rows of group g, c, h, w]; the result [c, h, w], of the whole image if
// the job's guidance rescales.
at::Tensor GuidedPrediction(std::span<DenoiseJob* const> batch, size_t job, int step, std::span<const RowGroup> groups,
                            std::span<const at::Tensor> predictions);

}  // namespace tessera::runtime
