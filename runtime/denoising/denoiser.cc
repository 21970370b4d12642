#include "runtime/denoising/denoiser.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/macros/planted.h"
#include "models/precision.h"
#include "runtime/denoising/guided_rows.h"
#include "runtime/denoising/mesh_forward.h"

namespace tessera::runtime {
namespace {

// Drops a stream when its scope is left early, for example by an exception.
class DroppedUnlessDone {
 public:
  explicit DroppedUnlessDone(std::unique_ptr<DenoiseStream>& stream) : stream_(stream) {}
  ~DroppedUnlessDone() {
    if (!done_) stream_.reset();
  }
  void Done() { done_ = true; }

 private:
  std::unique_ptr<DenoiseStream>& stream_;
  bool done_ = false;
};

}  // namespace

Denoiser::Denoiser(const models::Family& family, const parallel::RankGroups& groups, DenoiserOptions options)
    : family_(family), groups_(groups), options_(std::move(options)), tables_(family.transformer(), family.device()) {
  if (options_.stage_bounds.empty()) options_.stage_bounds = {0, family.transformer().num_blocks()};
  TORCH_CHECK(static_cast<int>(options_.stage_bounds.size()) == groups.pipe.size() + 1, "bounds of ",
              options_.stage_bounds.size() - 1, " stages for a pipe of ", groups.pipe.size());
  if (!options_.warmup) options_.patches = 1;
  if (options_.graphs) graphs_.emplace(family.transformer(), groups, family.device(), *options_.graphs);
}

void Denoiser::Step(std::span<DenoiseJob* const> batch) {
  const c10::InferenceMode no_gradients;
  for (const DenoiseJob* job : batch) TORCH_CHECK(!job->done(), "a job has no steps left");
  std::vector<RowGroup> groups = GroupRows(batch, family_);
  DroppedUnlessDone guard(stream_);
  if (stream_ == nullptr || !stream_->Continues(batch, groups)) {
    if (stream_ != nullptr) stream_->Flush();
    StreamOptions options = WholeSteps();
    options.pipeline.patches = options_.patches;
    options.epoch = next_epoch_++;
    if (options_.patches > 1) options.stores = &stores_;
    options.recorder = options_.recorder;
    if (base::Planted("noise_per_rank")) {
      for (DenoiseJob* job : batch) job->noise = MakeTesseraNoise(static_cast<uint64_t>(groups_.sequence.rank()));
    }
    stream_.reset();
    stream_ = std::make_unique<DenoiseStream>(family_, groups_, batch, std::move(groups), tables_, std::move(options));
  }
  bool whole = options_.patches == 1 || (stream_->steps() == 0 && !base::Planted("stale_store_across_requests"));
  for (const DenoiseJob* job : batch) whole = whole || job->completed() < options_.warmup.value_or(0);
  stream_->Step(whole);
  if (graphs_) graphs_->Trim();
  guard.Done();
}

bool Denoiser::Continues(std::span<DenoiseJob* const> batch) const {
  return stream_ != nullptr && stream_->Continues(batch, GroupRows(batch, family_));
}

void Denoiser::Flush() {
  if (stream_ == nullptr) return;
  const c10::InferenceMode no_gradients;
  DroppedUnlessDone guard(stream_);
  stream_->Flush();
  guard.Done();
}

StreamOptions Denoiser::WholeSteps() {
  return {.pipeline = {.bounds = options_.stage_bounds, .skips = family_.transformer().long_skips()},
          .graphs = options_.recorder == nullptr && graphs_ ? &*graphs_ : nullptr};
}

std::vector<at::Tensor> Denoiser::Predict(std::span<DenoiseJob* const> batch) {
  Flush();
  const c10::InferenceMode no_gradients;
  const at::ScalarType accumulation = models::AccumulationType(family_.dtype());
  const models::LatentGeometry& geometry = batch[0]->geometry;
  std::vector<at::Tensor> scaled;
  std::vector<at::Tensor> conditions;
  std::vector<int> steps;  // by job
  for (const DenoiseJob* job : batch) {
    if (job->condition.defined()) conditions.push_back(job->condition.unsqueeze(0));
    scaled.push_back(job->sampler->ScaleInput(job->latents.unsqueeze(0)));
    steps.push_back(job->next_step);
  }
  // [jobs, n, features]
  const at::Tensor of_image = models::Padded(family_.ToPatches(at::cat(scaled)), geometry.grid.count());
  const at::Tensor patches = WithConditions(of_image.to(family_.dtype()), conditions);
  const std::vector<RowGroup> groups = GroupRows(batch, family_);
  std::vector<at::Tensor> predictions;
  for (size_t g = 0; g < groups.size(); ++g) {
    const RowGroup& group = groups[g];
    if (groups_.pipe.size() == 1) {
      const auto modulations = [&](std::span<const GuidedRow> of, int block) {
        return ModulationsOf(batch, of, block, steps);
      };
      GroupForward forward(family_, batch, groups, g, tables_, groups_, WholeSteps());
      const parallel::StageOp whole{.patches = {0, 1}};
      if (!forward.rows().empty()) forward.Compute(whole, modulations, forward.RowsOf(patches));
      predictions.push_back(forward.Predictions(whole, geometry));
      continue;
    }
    ForwardRows input = ForwardRowsOf(family_, batch, group.rows, group.skipped_blocks, tables_, groups_);
    std::vector<at::Tensor> rows;
    for (const GuidedRow& row : group.rows) rows.push_back(patches[static_cast<int64_t>(row.job)]);
    const auto modulations = [&](int block) { return ModulationsOf(batch, group.rows, block, steps); };
    const at::Tensor output = ForwardOnMesh(family_.transformer(), std::move(input), modulations, at::stack(rows),
                                            groups_, options_.stage_bounds);
    predictions.push_back(family_.ToPrediction(output.to(accumulation), geometry));
  }
  if (graphs_) graphs_->Trim();
  std::vector<at::Tensor> guided;
  for (size_t j = 0; j < batch.size(); ++j) {
    guided.push_back(SumOf(GuidedPredictions(batch, j, batch[j]->next_step, groups, predictions)));
  }
  return guided;
}

}  // namespace tessera::runtime
