// Denoising, one timestep at a time: the loop itself belongs to whoever holds the command log.
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
  std::vector<int> stage_bounds;  // StageBounds() of the model; empty: one stage
  int patches = 1;
  // Steps at the start of a job in which the whole image goes through the stages; absent: all. `patches` is not read
  // then.
  std::optional<int> warmup = std::nullopt;
  StepRecorder* recorder = nullptr;  // of what the blocks compute; null: it is not kept
  // Of passes that come again, where the device makes graphs; absent: none, as where weights change their addresses.
  std::optional<StepGraphsOptions> graphs = std::nullopt;
};

// Runs batches of jobs on one rank, together with the other ranks of the mesh, to which the same calls are made in the
// same order with equal jobs. Lives as long as its model; used by one thread.
//
// With several pipeline stages a step is begun by Step, and partly done by later calls (parallel/plan/pipeline_plan.h).
// The first stage moves the latents; after Flush every rank has them. With one stage they are moved by Step itself.
//
// A *stream* is a run of steps of the same jobs with the same guidance branches. Jobs may leave and join between
// steps: that is a Flush and another stream, the first step of which goes over the whole image, because keys and values
// of the step before are kept for one stream only. So what a job becomes depends on the batches it was in, where
// steps go patch by patch, but never on what other batches held.
//
// Calls cannot block each other: what one call does on this rank needs of the others no more than their same call. All
// messages between stages have both ends in one call (PipelinePlanner), and within it every stage does them in one
// order; the collectives of other axes belong to ranks of one stage, which do the same operations one by one; the
// broadcasts of Flush come when all stages have done all of theirs.
class Denoiser {
 public:
  // All that it is given outlives it.
  Denoiser(const models::Family& family, const parallel::RankGroups& groups, DenoiserOptions options = {});

  // Begins one timestep for each job of the batch, in as few forward passes as its branches' shapes allow (mostly one;
  // or one an image, where images share no pass).
  // The jobs agree in geometry, each has a step left, and they stay where they are until the next Flush. Issues the
  // work and does not wait for it; DenoiseJob::finite says later whether the latents still are, as far as this rank
  // knows, and every rank may go on with other jobs if not. What is thrown (LibTorch, CommError) leaves the jobs of use
  // to nobody; on one rank others may go on.
  void Step(std::span<DenoiseJob* const> batch);

  // Whether the next Step of this batch goes on with the stream of the last one.
  bool Continues(std::span<DenoiseJob* const> batch) const;

  // Ends what is under way. Latents and samplers of the last batch's jobs are those after their last step begun, and
  // the latents are the same on all ranks. The next Step may go on with the same batch as if there had been no Flush.
  void Flush();

  // Whether the jobs of the last batch have the latents after their last step begun, on this rank. Always after a
  // Flush.
  bool has_latents() const { return stream_ == nullptr || stream_->has_latents(); }

  // That are kept now.
  size_t graphs() const { return graphs_ ? graphs_->count() : 0; }

  // What the sampler of each job would be given at its next step, each [channels, height, width] in max(fp32, model
  // dtype), computed over whole images, on every rank, by the passes that steps over whole images make, with their
  // graphs. Flushes; moves nothing.
  std::vector<at::Tensor> Predict(std::span<DenoiseJob* const> batch);

 private:
  // Of steps over whole images of which nothing is kept.
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
