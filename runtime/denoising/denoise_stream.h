// A run of steps of the same jobs with the same guidance branches, on one rank: the operations of a pipeline plan,
// done.
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
  int64_t epoch = 0;  // larger than that of every stream before
  // For keys and values of the step before, made as needed, one for each group of rows; null: every step is whole.
  std::vector<std::unique_ptr<parallel::StaleStore>>* stores = nullptr;
  StepRecorder* recorder = nullptr;  // of what the blocks compute; null: it is not kept
  StepGraphs* graphs = nullptr;      // of passes that come again; null: none
};

// The modulations of those rows for a block, as Modulations has them.
using RowModulations = absl::FunctionRef<std::vector<at::Tensor>(std::span<const GuidedRow> rows, int block)>;

// The work of the rows of one group that the cfg axis leaves to this rank. Where the rank is alone on a CPU, each of
// its threads takes an even share of the rows from the first block to the head: they wait for each other once a pass,
// and not in every operator.
class GroupForward {
 public:
  // The group is row_groups[number].
  GroupForward(const models::Family& family, std::span<DenoiseJob* const> batch, std::span<const RowGroup> row_groups,
               size_t number, PositionTables& tables, const parallel::RankGroups& groups, const StreamOptions& options);

  // Of all rows; null where the cfg axis leaves none, and where threads share them.
  MeshForward* forward() {
    if (graphed_ != nullptr) return &graphed_->forward();
    return shares_of_threads_.size() == 1 ? shares_of_threads_.front().forward.get() : nullptr;
  }

  // As that of MeshForward.
  void Compute(const parallel::StageOp& op, RowModulations modulations, const at::Tensor& patches);

  // This rank's.
  std::span<const GuidedRow> rows() const { return rows_; }

  // [rows, n, features] from [jobs, n, features].
  at::Tensor RowsOf(const at::Tensor& of_jobs) const;

  // On stage 0, after the operation that brought the result: the predictions of all rows of the group
  // [rows, c, h, w], for images of that geometry.
  at::Tensor Predictions(const parallel::StageOp& op, const models::LatentGeometry& geometry);

 private:
  struct ThreadShare {
    std::span<const GuidedRow> rows;
    std::unique_ptr<MeshForward> forward;
  };

  at::Tensor Result(const parallel::StageOp& op);

  const models::Family& family_;
  const parallel::RankGroups& groups_;
  std::vector<int64_t> shares_;  // rows by cfg rank
  std::vector<GuidedRow> rows_;
  at::Tensor index_;                            // the jobs of rows_
  std::vector<ThreadShare> shares_of_threads_;  // of rows_; none where graphed_ has them all
  std::shared_ptr<GraphedForward> graphed_;     // null: its passes have no graph
};

class DenoiseStream {
 public:
  // What it is given outlives it, the jobs too.
  DenoiseStream(const models::Family& family, const parallel::RankGroups& groups, std::span<DenoiseJob* const> batch,
                std::vector<RowGroup> row_groups, PositionTables& tables, StreamOptions options);

  // Whether a step of this batch, of which these are the rows, is this stream's next.
  bool Continues(std::span<DenoiseJob* const> batch, std::span<const RowGroup> row_groups) const;
  int64_t steps() const { return steps_; }
  // Whether the jobs have the latents after the last step, here.
  bool has_latents() const { return flushed_ || (groups_.pipe.rank() == 0 && options_.pipeline.patches == 1); }

  // Begins the next step of all jobs. The first one is whole.
  void Step(bool whole);
  // Ends what is under way, and puts latents and samplers back into the jobs, on every stage.
  void Flush();

 private:
  // A step that is under way.
  struct OpenStep {
    std::vector<int> of_jobs;                     // its number in each job
    std::vector<std::vector<at::Tensor>> strips;  // by group: predictions of the patches so far
  };

  void Run(const std::vector<parallel::StageOp>& ops);
  void Compute(const parallel::StageOp& op);
  void MoveLatents(const parallel::StageOp& op);
  // Where in the run the rows are at this step.
  std::vector<control::StatePlace> PlacesOf(std::span<const GuidedRow> rows, const OpenStep& step) const;

  const models::Family& family_;
  const parallel::RankGroups& groups_;
  const std::vector<DenoiseJob*> batch_;
  const std::vector<RowGroup> row_groups_;
  const StreamOptions options_;
  parallel::PipelinePlanner planner_;
  std::vector<std::unique_ptr<GroupForward>> forwards_;   // by group
  std::vector<std::unique_ptr<PatchedLatents>> latents_;  // by job; on stage 0
  std::map<int, OpenStep> open_;                          // by step of the stream
  std::vector<int> next_steps_;                           // by job
  int steps_ = 0;                                         // begun
  bool flushed_ = true;
};

}  // namespace tessera::runtime
