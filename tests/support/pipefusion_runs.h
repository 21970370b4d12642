// Runs requests patch by patch with PipeFusion.
#pragma once

#include <vector>

#include "tests/support/layout_runs.h"
#include "tests/support/pipefusion_emulation.h"

namespace tessera {

class PipeFusionRuns : public LayoutRuns {
 public:
  static constexpr int kSteps = 4;
  using LayoutRuns::LayoutRuns;

  // Returns the result of `body`, in fp64. Throws if it is not bit-identical on all ranks.
  template <class Body>
  at::Tensor Same(const parallel::Layout& layout, const Body& body) const {
    std::vector<at::Tensor> made(static_cast<size_t>(layout.ranks()));
    OnRanks(layout, at::kDouble, [&](const Rank& rank) { made[static_cast<size_t>(rank.rank)] = body(rank); });
    for (const at::Tensor& other : made)
      TORCH_CHECK(at::equal(other, made[0]), "ranks differ on ", parallel::LayoutText(layout));
    return made[0];
  }

  // Returns the latents of all three jobs in one batch [jobs, c, h, w] after all steps.
  at::Tensor Run(const parallel::Layout& layout, double rescale = 0) const {
    return Same(layout, [&](const Rank& rank) {
      std::vector<runtime::DenoiseJob> jobs = Jobs(rank.family, kSteps);
      for (runtime::DenoiseJob& job : jobs) job.guidance.rescale = rescale;
      for (int step = 0; step < kSteps; ++step) rank.denoiser.Step(Batch(jobs));
      rank.denoiser.Flush();
      return Latents(jobs);
    });
  }

  at::Tensor Emulate(const parallel::Layout& layout, double rescale = 0) const {
    return Same({}, [&](const Rank& rank) {
      std::vector<runtime::DenoiseJob> jobs = Jobs(rank.family, kSteps);
      for (runtime::DenoiseJob& job : jobs) job.guidance.rescale = rescale;
      return EmulatePipeFusion(rank.family, Batch(jobs), layout.patches, *layout.warmup);
    });
  }

  // Returns the latents of request 0 after four steps, with two steps of another request in the middle.
  at::Tensor RunAround(const parallel::Layout& layout, size_t other_request) const {
    return Same(layout, [&](const Rank& rank) {
      runtime::DenoiseJob job = Job(rank.family, 0, kSteps), other = Job(rank.family, other_request, kSteps);
      for (runtime::DenoiseJob* next : {&job, &job, &other, &other, &job, &job}) rank.denoiser.Step({&next, 1});
      rank.denoiser.Flush();
      return job.latents;
    });
  }
};

}  // namespace tessera
