// LayoutRuns runs three requests to one golden model on any layout and returns their latents. Ranks are threads. With
// TESSERA_RENDEZVOUS in the environment, every send waits for its receive: an order of calls that does not deadlock
// then does not deadlock on any device.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/families/families.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "parallel/host/mesh_communicators.h"
#include "parallel/plan/layout.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/engine/model_info.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/valid_layouts.h"

namespace tessera {

// One golden model and three requests to it: prompts of unequal length, with and without guidance, a token grid that no
// axis divides evenly, and a sampler that draws noise in every step.
class LayoutRuns {
 public:
  static constexpr int kSteps = 3;
  static constexpr size_t kJobs = 3;

  // One rank with its part of the model.
  struct Rank {
    int rank;
    parallel::Communicator& world;
    const parallel::RankGroups& groups;
    models::Family& family;
    runtime::Denoiser& denoiser;
  };

  // `model` is a pipeline of the golden sets, or an absolute path. `pipeline` is the class that runs it, by default
  // that of its folder.
  explicit LayoutRuns(const std::string& model, const std::string& pipeline = "") {
    absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(GoldenPipeline(model));
    TORCH_CHECK(folder.ok(), std::string(folder.status().message()));
    entry_ = *models::FindFamily(pipeline.empty() ? folder->class_name() : pipeline);
    folder_.emplace(*std::move(folder));
    description_ = *entry_->describe(*folder_);
    std::vector<std::string> warnings;
    sampler_ = *runtime::ReadSamplerConfig(*folder_, warnings);
    if (runtime::IsFlow(sampler_)) {
      std::get<runtime::FlowEulerOptions>(sampler_.options).stochastic_sampling = true;
    } else {
      sampler_ = *runtime::WithSampler(sampler_, "ddpm");
    }
    // Short where the family allows it, because padding would be most of the work.
    max_sequence_length_ = description_.default_max_sequence_length;
    if (entry_->family != "hunyuandit") max_sequence_length_ = std::min<int64_t>(max_sequence_length_, 37);
    const bool one_size = description_.min_size == description_.max_size;
    height_ = one_size ? description_.min_size : 3 * description_.size_multiple;
    width_ = one_size ? description_.min_size : 5 * description_.size_multiple;
  }

  runtime::SamplerConfig& sampler() { return sampler_; }
  const runtime::SamplerConfig& sampler() const { return sampler_; }

  // From now on requests begin at that step, from a picture. Requests 0 and 2 keep the picture outside a mask.
  void BeginFromPictures(int first_step) { first_step_ = first_step; }
  // From now on requests have reference pictures: one, two, and none.
  void LookAtPictures() { has_references_ = true; }
  // From now on every rank changes how it loads the model.
  void ChangeLoading(std::function<void(models::LoadOptions&)> change) { change_loading_ = std::move(change); }
  const models::FamilyDescription& description() const { return description_; }
  static bool HasMask(size_t index) { return index % kJobs != 1; }

  // Request number `index`, whose noise has the seed `index`.
  runtime::DenoiseJob Job(models::Family& family, size_t index, int steps = kSteps) const {
    const char* prompts[] = {"a cat", "two cats on a red sofa in the evening sun", ""};
    const double guidance[] = {4, 1, 2.5};
    const size_t i = index % kJobs;
    const bool text = description_.max_sequence_length > 0;
    models::PromptRequest request{.prompt = text ? prompts[i] : absl::StrCat(7 * i),
                                  .max_sequence_length = max_sequence_length_,
                                  .guidance_scale = guidance[i],
                                  .height = height_,
                                  .width = width_};
    if (text) request.negative_prompt = "blurred";
    request.options.true_cfg_scale = guidance[i];
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    absl::StatusOr<models::EncodedPrompt> encoded =
        family.Encode(request, {.attention = attention, .tensor = one, .world = one});
    TORCH_CHECK(encoded.ok(), std::string(encoded.status().message()));
    runtime::DenoiseJob job{
        .id = index + 1, .geometry = family.Geometry(height_, width_), .guidance = std::move(encoded->guidance)};
    job.sampler = *runtime::MakeSampler(sampler_, steps + first_step_.value_or(0), family, job.geometry);
    job.noise = runtime::MakeTesseraNoise(index);
    if (first_step_) {
      runtime::BeginFromPicture(job, family, PictureFor(job.geometry, index));
    } else {
      runtime::DrawInitialLatents(job, family);
    }
    if (has_references_) AddReferences(job, family, i);
    return job;
  }

  // Returns the start of request `index` after BeginFromPictures. Its mask has values from 0 to 1, both included, and
  // no two of its tokens are equal to their neighbours.
  runtime::CleanStart PictureFor(const models::LatentGeometry& geometry, size_t index) const {
    const int64_t elements = geometry.channels * geometry.height * geometry.width;
    const at::Tensor picture = at::cos(at::arange(elements, at::kDouble) * 1.7 + static_cast<double>(index));
    runtime::CleanStart start{.latents = picture.view({geometry.channels, geometry.height, geometry.width}),
                              .first_step = first_step_.value()};
    if (!HasMask(index)) return start;
    const at::Tensor rows = at::arange(geometry.height).view({-1, 1}), columns = at::arange(geometry.width);
    start.mask = (at::remainder(rows * 5 + columns * 3, 7).to(at::kDouble) / 6).unsqueeze(0);
    return start;
  }

  // Returns all three requests.
  std::vector<runtime::DenoiseJob> Jobs(models::Family& family, int steps = kSteps) const {
    std::vector<runtime::DenoiseJob> jobs;
    for (size_t i = 0; i < kJobs; ++i) jobs.push_back(Job(family, i, steps));
    return jobs;
  }
  static std::vector<runtime::DenoiseJob*> Batch(std::vector<runtime::DenoiseJob>& jobs) {
    std::vector<runtime::DenoiseJob*> batch;
    for (runtime::DenoiseJob& job : jobs) batch.push_back(&job);
    return batch;
  }
  static at::Tensor Latents(const std::vector<runtime::DenoiseJob>& jobs) {
    std::vector<at::Tensor> latents;
    for (const runtime::DenoiseJob& job : jobs) latents.push_back(job.latents);
    return at::stack(latents);
  }

  // Runs `body` on every rank of the layout. If `record` is not empty, the outputs of blocks are recorded in that
  // folder. A device other than the host must use memory that the host can address.
  void OnRanks(const parallel::Layout& layout, at::ScalarType dtype, const std::function<void(const Rank&)>& body,
               const std::string& record = "", at::Device device = at::kCPU) const {
    const parallel::Mesh mesh = *parallel::Mesh::Create(layout.mesh, layout.ranks());
    const std::vector<int> bounds = runtime::StageBounds(description_.block_flops, layout.mesh.pipe);
    ThreadRanksOptions options{.groups = parallel::MeshGroups(mesh)};
    options.communicator.rendezvous = std::getenv("TESSERA_RENDEZVOUS") != nullptr;
    options.communicator.addresses_devices = true;
    RunRanks(
        layout.ranks(),
        [&](ThreadRank& thread) {
          const c10::InferenceMode no_gradients;
          const int rank = thread.rank();
          const parallel::MeshCommunicators communicators(device, thread.shared_segment(), rank, options.communicator);
          const parallel::RankGroups groups = communicators.groups();
          models::LoadOptions load{.dtype = dtype, .device = device, .share = runtime::ShareOf(mesh, rank, bounds)};
          if (change_loading_) change_loading_(load);
          const absl::StatusOr<std::unique_ptr<models::Family>> family = entry_->load(*folder_, load);
          TORCH_CHECK(family.ok(), std::string(family.status().message()));
          std::unique_ptr<runtime::StepRecorder> recorder;
          if (!record.empty())
            recorder = std::make_unique<runtime::StepRecorder>(*control::StepRecordWriter::Create(record, rank));
          runtime::Denoiser denoiser(
              **family, groups,
              {.stage_bounds = bounds, .patches = layout.patches, .warmup = layout.warmup, .recorder = recorder.get()});
          body({.rank = rank, .world = thread.world(), .groups = groups, .family = **family, .denoiser = denoiser});
        },
        options);
  }

  // Returns the latents of all jobs after each step on each rank, [ranks][steps][jobs, c, h, w], in host memory.
  std::vector<std::vector<at::Tensor>> Run(const parallel::Layout& layout, at::ScalarType dtype,
                                           const std::string& record = "", at::Device device = at::kCPU) const {
    std::vector<std::vector<at::Tensor>> latents(static_cast<size_t>(layout.ranks()));
    const auto body = [&](const Rank& rank) {
      std::vector<runtime::DenoiseJob> jobs = Jobs(rank.family);
      for (int step = 0; step < kSteps; ++step) {
        rank.denoiser.Step(Batch(jobs));
        rank.denoiser.Flush();
        latents[static_cast<size_t>(rank.rank)].push_back(Latents(jobs).cpu());
      }
      rank.groups.world.Barrier();  // errors of a device have surfaced by now
    };
    OnRanks(layout, dtype, body, record, device);
    return latents;
  }

  std::vector<at::Tensor> RunSerially(at::ScalarType dtype) const { return Run({}, dtype)[0]; }

  // Returns the largest relative difference from the latents of a single rank, over all ranks and steps.
  double WorstError(const parallel::Layout& layout, const std::vector<at::Tensor>& serial, at::ScalarType dtype,
                    at::Device device = at::kCPU) const {
    double worst = -1;
    for (const std::vector<at::Tensor>& latents : Run(layout, dtype, "", device)) {
      for (int step = 0; step < kSteps; ++step) {
        const double error = Relative(latents[step], serial[step]);
        worst = std::isnan(error) ? std::numeric_limits<double>::infinity() : std::max(worst, error);
      }
    }
    return worst;
  }

  static double Relative(const at::Tensor& actual, const at::Tensor& expected) {
    return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
  }

  // Returns the layouts in `texts` that are valid for the model.
  std::vector<parallel::Layout> Valid(const std::vector<const char*>& texts) const {
    return ValidLayouts(texts, description_);
  }

 private:
  static void AddReferences(runtime::DenoiseJob& job, const models::Family& family, size_t index) {
    constexpr models::TokenGrid kGrids[] = {{.height = 2, .width = 5}, {.height = 3, .width = 1}};
    const size_t count = index == 2 ? 0 : index + 1;
    for (const models::TokenGrid& grid : std::span(kGrids).first(count)) {
      const models::LatentGeometry& geometry = job.geometry;
      const int64_t features = geometry.channels * geometry.height * geometry.width / geometry.grid.count();
      const at::Tensor values = at::sin(at::arange(grid.count() * features, at::kDouble) * 0.7);
      job.references.push_back(values.view({grid.count(), features}).to(family.device(), family.dtype()));
      job.reference_grids.push_back(grid);
    }
  }

  const models::FamilyEntry* entry_ = nullptr;
  std::optional<models::ModelFolder> folder_;
  models::FamilyDescription description_;
  runtime::SamplerConfig sampler_;
  std::function<void(models::LoadOptions&)> change_loading_;
  bool has_references_ = false;
  std::optional<int> first_step_;  // absent: requests begin from noise
  int64_t max_sequence_length_ = 0;
  int64_t height_ = 0, width_ = 0;
};

}  // namespace tessera
