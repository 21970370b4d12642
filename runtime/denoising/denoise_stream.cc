#include "runtime/denoising/denoise_stream.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/macros/planted.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops.h"
#include "models/precision.h"
#include "runtime/device/host_memory.h"

namespace tessera::runtime {
namespace {

using Kind = parallel::StageOp::Kind;

parallel::PipelinePlanner MakePlanner(const parallel::Pipeline& pipeline, int stage) {
  absl::StatusOr<parallel::PipelinePlanner> planner = parallel::PipelinePlanner::Create(pipeline, stage);
  TORCH_CHECK(planner.ok(), std::string(planner.status().message()));
  return *std::move(planner);
}

// Returns the length of the longest text that is computed with patch 0. All groups must cut their image identically.
int64_t TextWork(const models::Family& family, std::span<DenoiseJob* const> batch, std::span<const RowGroup> groups) {
  int64_t longest = 0;
  if (!family.transformer().joint_text()) return longest;
  for (const RowGroup& group : groups) {
    for (const GuidedRow& row : group.rows) {
      const at::Tensor& text = batch[row.job]->guidance.branches[row.branch].row.text;
      if (!text.defined()) continue;
      longest = std::max(longest, text.size(0) + models::TokensOf(batch[row.job]->reference_grids));
    }
  }
  return longest;
}

std::vector<parallel::TokenSpan> PatchesOf(const parallel::TokenCounts& counts) {
  const absl::StatusOr<parallel::TokenLayout> tokens = parallel::TokenLayout::Create(counts);
  TORCH_CHECK(tokens.ok(), std::string(tokens.status().message()));
  std::vector<parallel::TokenSpan> patches;
  for (int patch = 0; patch < counts.patches; ++patch) patches.push_back(tokens->Patch(patch));
  return patches;
}

// Returns the number of threads that share the rows of a group equally. Each thread then reads all weights, which costs
// more than it saves if there are few tokens and the weights do not fit into a cache.
size_t ThreadsFor(const models::Family& family, const RowGroup& group, size_t rows, int64_t tokens,
                  const parallel::RankGroups& groups, const StreamOptions& options) {
  constexpr int64_t kEnoughTokens = 512, kFewWeightBytes = int64_t{64} << 20;
  const auto threads = static_cast<size_t>(at::get_num_threads());
  const bool alone = groups.world.size() == 1 && options.stores == nullptr && options.recorder == nullptr;
  const bool pays = tokens >= kEnoughTokens || family.weight_bytes() <= kFewWeightBytes;
  const bool shares = alone && pays && family.device().is_cpu() && family.transformer().serves_threads() &&
                      group.adapters.empty() && rows % threads == 0;
  return shares ? threads : 1;
}

// Whether the last stage's result is available on stage 0 after this operation.
bool BringsResult(const parallel::StageOp& op, int stages) {
  return op.kind == (stages == 1 ? Kind::kCompute : Kind::kReceiveResult);
}

}  // namespace

GroupForward::GroupForward(const models::Family& family, std::span<DenoiseJob* const> batch,
                           std::span<const RowGroup> row_groups, size_t number, PositionTables& tables,
                           const parallel::RankGroups& groups, const StreamOptions& options)
    : family_(family),
      groups_(groups),
      shares_(parallel::EvenRows(static_cast<int64_t>(row_groups[number].rows.size()), groups.cfg.size())) {
  const RowGroup& group = row_groups[number];
  const auto mine = static_cast<size_t>(groups.cfg.rank());
  int64_t first = 0;
  for (size_t r = 0; r < mine; ++r) first += shares_[r];
  const std::span<const GuidedRow> own(group.rows.begin() + first, static_cast<size_t>(shares_[mine]));
  if (own.empty()) return;
  std::vector<int64_t> index;
  rows_.assign(own.begin(), own.end());
  for (const GuidedRow& row : own) index.push_back(static_cast<int64_t>(row.job));
  index_ = ToDevice(at::tensor(index, at::kLong), family.device());

  const auto forward_rows = [&](std::span<const GuidedRow> of) {
    ForwardRows rows = ForwardRowsOf(family, batch, of, group.skipped_blocks, tables, groups);
    rows.text_work = TextWork(family, batch, row_groups);
    return rows;
  };
  if (options.graphs != nullptr) graphed_ = options.graphs->Find(number, options.pipeline, forward_rows(rows_));
  if (graphed_ != nullptr) return;
  const size_t threads = ThreadsFor(family, group, rows_.size(), batch[0]->geometry.grid.count(), groups, options);
  const size_t each = rows_.size() / threads;
  for (size_t thread = 0; thread < threads; ++thread) {
    const auto share = std::span<const GuidedRow>(rows_).subspan(thread * each, each);
    shares_of_threads_.push_back({.rows = share,
                                  .forward = std::make_unique<MeshForward>(family.transformer(), groups,
                                                                           options.pipeline, forward_rows(share))});
  }
}

void GroupForward::Compute(const parallel::StageOp& op, RowModulations modulations, const at::Tensor& patches) {
  if (graphed_ != nullptr) {
    return graphed_->Compute(
        op, [&](int block) { return modulations(rows_, block); }, patches);
  }
  const auto compute = [&](const ThreadShare& share, const at::Tensor& of_share) {
    share.forward->Compute(
        op, [&](int block) { return modulations(share.rows, block); }, of_share);
  };
  if (shares_of_threads_.size() == 1) return compute(shares_of_threads_.front(), patches);
  kernels::cpu::ParallelFor(static_cast<int64_t>(shares_of_threads_.size()), 1, [&](int64_t first, int64_t last) {
    const c10::InferenceMode no_gradients;
    for (int64_t thread = first; thread < last; ++thread) {
      const ThreadShare& share = shares_of_threads_[static_cast<size_t>(thread)];
      const auto each = static_cast<int64_t>(share.rows.size());
      compute(share, patches.narrow(0, thread * each, each));
    }
  });
}

at::Tensor GroupForward::RowsOf(const at::Tensor& of_jobs) const { return of_jobs.index_select(0, index_); }

at::Tensor GroupForward::Result(const parallel::StageOp& op) {
  if (forward() != nullptr) return forward()->Result(op);
  std::vector<at::Tensor> results;
  for (const ThreadShare& share : shares_of_threads_) results.push_back(share.forward->Result(op));
  return at::cat(results);
}

at::Tensor GroupForward::Predictions(const parallel::StageOp& op, const models::LatentGeometry& geometry) {
  const at::ScalarType accumulation = models::AccumulationType(family_.dtype());
  // Every rank of the cfg axis has computed its share of the rows. All of them combine all rows in the same order.
  const at::Tensor own = !rows_.empty() ? family_.ToPrediction(Result(op).to(accumulation), geometry)
                                        : at::empty({0, geometry.channels, geometry.height, geometry.width},
                                                    at::TensorOptions(accumulation).device(family_.device()));
  return groups_.cfg.AllGather(own, shares_);
}

DenoiseStream::DenoiseStream(const models::Family& family, const parallel::RankGroups& groups,
                             std::span<DenoiseJob* const> batch, std::vector<RowGroup> row_groups,
                             PositionTables& tables, StreamOptions options)
    : family_(family),
      groups_(groups),
      batch_(batch.begin(), batch.end()),
      row_groups_(std::move(row_groups)),
      options_(std::move(options)),
      planner_(MakePlanner(options_.pipeline, groups.pipe.rank())) {
  for (size_t g = 0; g < row_groups_.size(); ++g) {
    forwards_.push_back(std::make_unique<GroupForward>(family, batch, row_groups_, g, tables, groups, options_));
    MeshForward* forward = forwards_.back()->forward();
    if (forward == nullptr) continue;
    forward->RecordTo(options_.recorder);
    if (options_.stores == nullptr) continue;
    while (options_.stores->size() <= g) options_.stores->push_back(std::make_unique<parallel::StaleStore>());
    parallel::StaleStore* store = (*options_.stores)[g].get();
    store->Begin(options_.epoch, forward->tokens(), groups.ring.rank());
    forward->UseStale(store);
  }
  const std::vector<parallel::TokenSpan> patches = PatchesOf({.image = batch[0]->geometry.grid.count(),
                                                              .patches = options_.pipeline.patches,
                                                              .text_work = TextWork(family, batch, row_groups_)});
  for (DenoiseJob* job : batch_) {
    next_steps_.push_back(job->next_step);
    ids_.push_back(job->id);
    if (!job->state.defined()) job->state = FreshState(family.device());
    if (groups.pipe.rank() == 0) latents_.push_back(std::make_unique<PatchedLatents>(*job, patches));
  }
}

bool DenoiseStream::Continues(std::span<DenoiseJob* const> batch, std::span<const RowGroup> row_groups) const {
  if (!std::ranges::equal(batch, batch_) || !std::ranges::equal(row_groups, row_groups_)) return false;
  // A different job may have taken the place of one that ended.
  for (size_t j = 0; j < batch.size(); ++j) {
    if (batch[j]->next_step != next_steps_[j] || batch[j]->id != ids_[j]) return false;
  }
  return true;
}

void DenoiseStream::Step(bool whole) {
  OpenStep& step = open_[steps_];
  bool barrier = false;
  for (size_t j = 0; j < batch_.size(); ++j) {
    DenoiseJob& job = *batch_[j];
    step.of_jobs.push_back(job.next_step);
    next_steps_[j] = ++job.next_step;
    job.all_whole = job.all_whole && whole;
    barrier = barrier || MovesWhole(job);
  }
  step.strips.resize(row_groups_.size());
  absl::StatusOr<std::vector<parallel::StageOp>> ops =
      planner_.Step({.job = options_.epoch, .step = steps_, .whole = whole, .barrier = barrier});
  TORCH_CHECK(ops.ok(), std::string(ops.status().message()));
  ++steps_;
  flushed_ = false;
  Run(*ops);
}

void DenoiseStream::Flush() {
  if (flushed_) return;
  Run(planner_.Flush());
  flushed_ = true;
  for (const auto& latents : latents_) latents->Store();
  for (DenoiseJob* job : batch_) {
    if (job->done()) job->prepared.clear();
  }
  if (groups_.pipe.size() == 1) return;
  for (DenoiseJob* job : batch_) {
    at::Tensor latents = job->latents.contiguous();
    if (groups_.pipe.rank() > 0) latents = at::empty_like(latents);
    groups_.pipe.Broadcast(latents, 0);
    job->latents = latents;
    job->state = FreshState(latents.device());
    (void)kernels::WeightedSums({latents}, {1.0}, job->state);
  }
}

void DenoiseStream::Run(const std::vector<parallel::StageOp>& ops) {
  std::vector<MeshForward*> forwards;
  for (const auto& forward : forwards_) {
    if (forward->forward() != nullptr) forwards.push_back(forward->forward());
  }
  for (size_t i = 0; i < ops.size();) {
    size_t end = i + 1;
    if (ops[i].is_message()) {
      end = ExchangeSlot(ops, i, forwards, groups_.pipe);
    } else if (ops[i].kind == Kind::kCompute) {
      Compute(ops[i]);
    }
    for (; i < end; ++i) {
      if (groups_.pipe.rank() == 0 && BringsResult(ops[i], groups_.pipe.size())) MoveLatents(ops[i]);
    }
  }
}

void DenoiseStream::Compute(const parallel::StageOp& op) {
  at::Tensor patches;  // [jobs, n, features]
  if (groups_.pipe.rank() == 0) {
    std::vector<at::Tensor> scaled;
    std::vector<at::Tensor> conditions;  // [1, n, features]
    for (const auto& latents : latents_) {
      scaled.push_back(latents->ScaledInput(op.patches));
      if (const at::Tensor condition = latents->Condition(op.patches); condition.defined()) {
        conditions.push_back(condition.unsqueeze(0));
      }
    }
    const at::Tensor of_image =
        models::Padded(family_.ToPatches(at::cat(scaled)), latents_.front()->tokens(op.patches));
    patches = WithConditions(of_image.to(family_.dtype()), conditions);
  }
  const auto open = open_.find(op.step);
  for (size_t g = 0; g < forwards_.size(); ++g) {
    if (forwards_[g]->rows().empty()) continue;
    if (options_.recorder != nullptr) options_.recorder->Begin(PlacesOf(forwards_[g]->rows(), open->second));
    const auto modulations = [&](std::span<const GuidedRow> rows, int block) {
      return ModulationsOf(batch_, rows, block, open->second.of_jobs);
    };
    forwards_[g]->Compute(op, modulations, patches.defined() ? forwards_[g]->RowsOf(patches) : at::Tensor());
  }
  // Stage 0 still needs the step when the predictions arrive.
  if (groups_.pipe.rank() > 0 && op.patches.end == options_.pipeline.patches) open_.erase(open);
}

std::vector<control::StatePlace> DenoiseStream::PlacesOf(std::span<const GuidedRow> rows, const OpenStep& step) const {
  std::vector<control::StatePlace> places;
  for (const GuidedRow& row : rows) {
    places.push_back(
        {.job = batch_[row.job]->id, .step = step.of_jobs[row.job], .branch = static_cast<int32_t>(row.branch)});
  }
  return places;
}

void DenoiseStream::MoveLatents(const parallel::StageOp& op) {
  if (base::Planted("latents_read_each_step")) (void)batch_[0]->latents.sum().item<double>();
  if (base::Planted("table_made_each_step")) (void)at::arange(4, at::kDouble).to(family_.device());
  const models::LatentGeometry& image = batch_[0]->geometry;
  const int patches = options_.pipeline.patches;
  const bool last = op.patches.end == patches;
  const auto open = open_.find(op.step);
  std::vector<at::Tensor> predictions, of_image;  // by group
  for (size_t g = 0; g < forwards_.size(); ++g) {
    models::LatentGeometry geometry = image;
    if (patches > 1) geometry = StripGeometry(image, latents_.front()->tokens(op.patches));
    predictions.push_back(forwards_[g]->Predictions(op, geometry));
    if (base::Planted("guidance_halves_swapped")) predictions[g] = predictions[g].flip(0);
    std::vector<at::Tensor>& strips = open->second.strips[g];
    strips.push_back(predictions[g]);
    if (last) of_image.push_back(strips.size() == 1 ? strips.front() : at::cat(strips, 3));
  }
  for (size_t j = 0; j < batch_.size(); ++j) {
    const int step = open->second.of_jobs[j];
    if (!latents_[j]->whole()) {
      latents_[j]->Move(op.patches, GuidedPredictions(batch_, j, step, row_groups_, predictions));
    } else if (last) {
      latents_[j]->Move({0, patches}, GuidedPredictions(batch_, j, step, row_groups_, of_image));
    }
  }
  if (last) open_.erase(open);
}

}  // namespace tessera::runtime
