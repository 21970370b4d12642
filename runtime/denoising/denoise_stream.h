// DenoiseStream executes a pipeline plan for consecutive steps of the same jobs with the same guidance branches, on one
// rank.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/functional/function_ref.h"
#include "models/families/family.h"
#include "parallel/attention/stale_store.h"
#include "parallel/plan/pipeline_plan.h"
#include "parallel/rank_groups.h"
#include "runtime/denoising/graphed_forward.h"
#include "runtime/denoising/guided_rows.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/denoising/patched_latents.h"
#include "runtime/denoising/position_tables.h"

namespace tessera::runtime {

struct StreamOptions {
  parallel::Pipeline pipeline;
  int64_t epoch = 0;  // must exceed that of every earlier stream
  // Keys and values of the previous step, one store per group of rows, created on demand. Null: every step is whole.
  std::vector<std::unique_ptr<parallel::StaleStore>>* stores = nullptr;
  StepRecorder* recorder = nullptr;  // records what the blocks compute; null: nothing is recorded
  StepGraphs* graphs = nullptr;      // graphs of repeated passes; null: none
};

// Returns the modulations of those rows for a block, as in Modulations.
using RowModulations = absl::FunctionRef<std::vector<at::Tensor>(std::span<const GuidedRow> rows, int block)>;

// Computes those rows of one group that the cfg axis assigns to this rank. If the rank is alone on a CPU, each of its
// threads takes an equal share of the rows from the first block to the head, so that threads wait for each other once
// per pass instead of in every operator.
class GroupForward {
 public:
  // The group is row_groups[number].
  GroupForward(const models::Family& family, std::span<DenoiseJob* const> batch, std::span<const RowGroup> row_groups,
               size_t number, PositionTables& tables, const parallel::RankGroups& groups, const StreamOptions& options);

  // The forward of all rows; null if the cfg axis assigns no rows to this rank, or if threads share them.
  MeshForward* forward() {
    if (graphed_ != nullptr) return &graphed_->forward();
    return shares_of_threads_.size() == 1 ? shares_of_threads_.front().forward.get() : nullptr;
  }

  // See MeshForward::Compute.
  void Compute(const parallel::StageOp& op, RowModulations modulations, const at::Tensor& patches);

  // The rows of this rank.
  std::span<const GuidedRow> rows() const { return rows_; }

  // [jobs, n, features] → [rows, n, features].
  at::Tensor RowsOf(const at::Tensor& of_jobs) const;

  // Returns the predictions of all rows of the group [rows, c, h, w], for images of that geometry. On stage 0, after
  // the operation that received the result.
  at::Tensor Predictions(const parallel::StageOp& op, const models::LatentGeometry& geometry);

 private:
  struct ThreadShare {
    std::span<const GuidedRow> rows;
    std::unique_ptr<MeshForward> forward;
  };

  at::Tensor Result(const parallel::StageOp& op);

  const models::Family& family_;
  const parallel::RankGroups& groups_;
  std::vector<int64_t> shares_;  // number of rows by cfg rank
  std::vector<GuidedRow> rows_;
  at::Tensor index_;                            // the index of each row's job
  std::vector<ThreadShare> shares_of_threads_;  // of rows_; empty if graphed_ has all of them
  std::shared_ptr<GraphedForward> graphed_;     // null if the passes have no graph
};

class DenoiseStream {
 public:
  // The arguments outlive this object, including the jobs.
  DenoiseStream(const models::Family& family, const parallel::RankGroups& groups, std::span<DenoiseJob* const> batch,
                std::vector<RowGroup> row_groups, PositionTables& tables, StreamOptions options);

  // Whether the next step of this stream can be a step of this batch with these rows.
  bool Continues(std::span<DenoiseJob* const> batch, std::span<const RowGroup> row_groups) const;
  int64_t steps() const { return steps_; }
  // Whether the jobs on this rank have the latents after the last step.
  bool has_latents() const { return flushed_ || (groups_.pipe.rank() == 0 && options_.pipeline.patches == 1); }

  // Starts the next step of all jobs. The first step must be whole.
  void Step(bool whole);
  // Completes the started steps, and puts latents and samplers back into the jobs, on every stage.
  void Flush();

 private:
  // A step that has been started and not completed.
  struct OpenStep {
    std::vector<int> of_jobs;                     // the step's index in each job
    std::vector<std::vector<at::Tensor>> strips;  // by group: predictions of the patches so far
  };

  void Run(const std::vector<parallel::StageOp>& ops);
  void Compute(const parallel::StageOp& op);
  void MoveLatents(const parallel::StageOp& op);
  // Returns the job, step and branch of the rows at this step.
  std::vector<control::StatePlace> PlacesOf(std::span<const GuidedRow> rows, const OpenStep& step) const;

  const models::Family& family_;
  const parallel::RankGroups& groups_;
  const std::vector<DenoiseJob*> batch_;
  const std::vector<RowGroup> row_groups_;
  const StreamOptions options_;
  parallel::PipelinePlanner planner_;
  std::vector<std::unique_ptr<GroupForward>> forwards_;   // by group
  std::vector<std::unique_ptr<PatchedLatents>> latents_;  // by job; only on stage 0
  std::map<int, OpenStep> open_;                          // by step of the stream
  std::vector<int> next_steps_;                           // by job
  std::vector<uint64_t> ids_;                             // of the jobs; another job may lie where one has ended
  int steps_ = 0;                                         // number of steps that were started
  bool flushed_ = true;
};

}  // namespace tessera::runtime
