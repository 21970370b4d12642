// Denoiser denoises images one timestep at a time. The loop over timesteps belongs to the owner of the command log.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "models/families/family.h"
#include "parallel/attention/stale_store.h"
#include "parallel/plan/pipeline_plan.h"
#include "parallel/rank_groups.h"
#include "runtime/denoising/denoise_job.h"
#include "runtime/denoising/denoise_stream.h"
#include "runtime/denoising/graphed_forward.h"
#include "runtime/denoising/position_tables.h"

namespace tessera::runtime {

struct DenoiserOptions {
  std::vector<int> stage_bounds;  // StageBounds() of the model; empty for one stage
  int patches = 1;
  // Steps at the start of a job in which the whole image goes through the stages. Absent: all steps, and `patches` is
  // not used.
  std::optional<int> warmup = std::nullopt;
  StepRecorder* recorder = nullptr;  // records what the blocks compute; null: nothing is recorded
  // For graphs of repeated passes, if the device supports graphs. Absent: no graphs, for example because weights change
  // their addresses.
  std::optional<StepGraphsOptions> graphs = std::nullopt;
};

// Runs batches of jobs on one rank, together with the other ranks of the mesh, on which the same calls must be made in
// the same order with equal jobs. Lives as long as its model; used by one thread.
//
// With several pipeline stages, Step starts a step, and later calls complete it (parallel/plan/pipeline_plan.h). The
// first stage updates the latents; after Flush every rank has them. With one stage Step updates them.
//
// A *stream* is a run of steps of the same jobs with the same guidance branches. Jobs may leave and join between steps:
// this means a Flush and a new stream, whose first step covers the whole image, because keys and values of the previous
// step are kept only within a stream. If steps run patch by patch, a job's result therefore depends on the batches that
// it was in, but never on other batches.
//
// Calls cannot deadlock: on each rank a call needs nothing from the other ranks except their same call. Both ends of
// every message between stages are in one call (PipelinePlanner), and within it every stage sends and receives them in
// the same order. The collectives of the other axes are among ranks of one stage, which run the same operations in
// sequence. The broadcasts of Flush come after all stages have completed their operations.
class Denoiser {
 public:
  // The arguments outlive this object.
  Denoiser(const models::Family& family, const parallel::RankGroups& groups, DenoiserOptions options = {});

  // Starts one timestep for each job of the batch, in as few forward passes as its branches' shapes allow (usually one;
  // or one per image if images share no pass). The jobs have equal geometry, each has a step left, and their addresses
  // must not change until the next Flush. Step issues the work and does not wait for it. Afterwards IsFinite(job) says
  // whether the job's latents are still finite, as far as this rank knows; if not, every rank may continue with other
  // jobs. If Step throws (LibTorch, CommError), its jobs are unusable; if there is only one rank, other jobs may
  // continue.
  void Step(std::span<DenoiseJob* const> batch);

  // Whether the next Step of this batch would continue the last one's stream.
  bool Continues(std::span<DenoiseJob* const> batch) const;

  // Completes the started steps. The latents and samplers of the last batch's jobs are then those after the last step
  // that was started, and the latents are equal on all ranks. The next Step may continue with the same batch as if
  // Flush had not been called.
  void Flush();

  // Whether the jobs of the last batch have, on this rank, the latents after the last step that was started. Always
  // true after Flush.
  bool has_latents() const { return stream_ == nullptr || stream_->has_latents(); }

  // The number of graphs that are kept.
  size_t graphs() const { return graphs_ ? graphs_->count() : 0; }

  // Returns the prediction that each job's sampler would get at its next step, [channels, height, width] in max(fp32,
  // model dtype), on every rank. It is computed over whole images by the same passes and graphs as steps over whole
  // images. Calls Flush; updates no latents.
  std::vector<at::Tensor> Predict(std::span<DenoiseJob* const> batch);

 private:
  // Options for steps over whole images of which nothing is kept.
  StreamOptions WholeSteps();

  const models::Family& family_;
  const parallel::RankGroups& groups_;
  DenoiserOptions options_;
  PositionTables tables_;
  std::vector<std::unique_ptr<parallel::StaleStore>> stores_;  // by group of rows
  int64_t next_epoch_ = 0;
  std::optional<StepGraphs> graphs_;
  std::unique_ptr<DenoiseStream> stream_;
};

}  // namespace tessera::runtime
