// Runs jobs on the pretend device with and without graphs of their passes. The images must not depend on the graphs.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "tests/support/layout_runs.h"
#include "tests/support/pretend_device.h"

namespace tessera {

// The results of a run.
struct GraphRun {
  at::Tensor latents;      // of all jobs, on the host
  at::Tensor predictions;  // before each step, on the host; undefined unless requested
  size_t graphs = 0;       // kept at the end
  int64_t operators = 0;   // issued individually
};

// Indices of the jobs in the batch of a step; empty: the run is over.
using BatchAt = std::function<std::vector<size_t>(int step)>;

// Changes the jobs before the first step.
using PrepareJobs = std::function<void(std::vector<runtime::DenoiseJob>&)>;

inline std::vector<size_t> AllJobsFor20Steps(int step) {
  return step < 20 ? std::vector<size_t>{0, 1, 2} : std::vector<size_t>{};
}

// Runs on one rank in fp32. Without `graphs` every operator is issued individually.
inline GraphRun RunOnDevice(
    const LayoutRuns& runs, std::optional<runtime::StepGraphsOptions> graphs,
    const BatchAt& batch_at = AllJobsFor20Steps, const PrepareJobs& prepare = [](std::vector<runtime::DenoiseJob>&) {},
    const parallel::Layout& layout = {}, bool predict = false) {
  GraphRun run;
  runs.OnRanks(
      layout, at::kFloat,
      [&](const LayoutRuns::Rank& rank) {
        runtime::Denoiser denoiser(rank.family, rank.groups, {.graphs = graphs});
        std::vector<runtime::DenoiseJob> jobs = runs.Jobs(rank.family, 20);
        prepare(jobs);
        std::vector<at::Tensor> predictions;
        const int64_t before = PretendDeviceCalls();
        for (int step = 0; !batch_at(step).empty(); ++step) {
          std::vector<runtime::DenoiseJob*> batch;
          for (const size_t job : batch_at(step)) batch.push_back(&jobs[job]);
          if (predict) predictions.push_back(at::stack(denoiser.Predict(batch)).cpu());
          denoiser.Step(batch);
        }
        denoiser.Flush();
        if (rank.rank == 0) {
          run = {.latents = LayoutRuns::Latents(jobs).cpu(),
                 .predictions = predict ? at::cat(predictions) : at::Tensor(),
                 .graphs = denoiser.graphs(),
                 .operators = PretendDeviceCalls() - before};
        }
      },
      "", kPretendDevice);
  return run;
}

}  // namespace tessera
