// Runs the requests of a golden model in a batch and alone, on a device that rounds matrix products by their shapes.
#pragma once

#include <vector>

#include "tests/support/layout_runs.h"
#include "tests/support/pretend_device.h"

namespace tessera {

// [jobs, c, h, w] after all steps of the requests 0 to jobs - 1: in one batch, or each in a separate run.
inline at::Tensor LatentsOnDevice(const LayoutRuns& runs, const parallel::Layout& layout, bool together) {
  at::Tensor latents;
  RoundByShapeOnPretendDevice(true);
  runs.OnRanks(
      layout, at::kDouble,
      [&](const LayoutRuns::Rank& rank) {
        std::vector<runtime::DenoiseJob> jobs = runs.Jobs(rank.family);
        std::vector<std::vector<runtime::DenoiseJob*>> batches = {LayoutRuns::Batch(jobs)};
        if (!together) {
          batches.clear();
          for (runtime::DenoiseJob& job : jobs) batches.push_back({&job});
        }
        for (const std::vector<runtime::DenoiseJob*>& batch : batches) {
          for (int step = 0; step < LayoutRuns::kSteps; ++step) rank.denoiser.Step(batch);
          rank.denoiser.Flush();
        }
        if (rank.rank == 0) latents = LayoutRuns::Latents(jobs).cpu();
      },
      "", kPretendDevice);
  RoundByShapeOnPretendDevice(false);
  return latents;
}

}  // namespace tessera
