// For tests of layouts: one golden model, three requests to it, and their latents on any layout. Ranks are threads.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "models/families.h"
#include "parallel/host/mesh_communicators.h"
#include "parallel/host/thread_ranks.h"
#include "parallel/layout.h"
#include "runtime/denoiser.h"
#include "runtime/mesh_forward.h"
#include "runtime/model_info.h"

namespace tessera {

// One golden model and three requests to it: unequal prompts, with and without guidance, a grid of tokens that nothing
// divides, and a sampler that draws noise in every step.
class LayoutRuns {
 public:
  static constexpr int kSteps = 3;

  // `model` is a folder of tests/golden/pipelines.
  explicit LayoutRuns(const std::string& model) {
    absl::StatusOr<ModelFolder> folder = ModelFolder::Open("tests/golden/pipelines/" + model);
    TORCH_CHECK(folder.ok(), std::string(folder.status().message()));
    entry_ = *FindFamily(folder->class_name());
    folder_.emplace(*std::move(folder));
    description_ = *entry_->describe(*folder_);
    std::vector<std::string> warnings;
    sampler_ = *ReadSamplerConfig(*folder_, warnings);
    if (IsFlow(sampler_)) {
      sampler_.stochastic_sampling = true;
    } else {
      sampler_ = *WithSampler(sampler_, "ddpm");
    }
    const bool one_size = description_.min_size == description_.max_size;
    height_ = one_size ? description_.min_size : 3 * description_.size_multiple;
    width_ = one_size ? description_.min_size : 5 * description_.size_multiple;
  }

  // The latents of all jobs after each step, [steps][jobs, c, h, w], as one rank has them.
  std::vector<at::Tensor> Run(const RankGroups& groups, const WeightShare& share, at::ScalarType dtype) const {
    const c10::InferenceMode no_gradients;
    const absl::StatusOr<std::unique_ptr<Family>> family = entry_->load(*folder_, {.dtype = dtype, .share = share});
    TORCH_CHECK(family.ok(), std::string(family.status().message()));
    SingleRank one;
    LocalAttention attention;
    const ForwardContext context{.attention = attention, .tensor = one, .world = one};
    std::vector<DenoiseJob> jobs(3);
    std::vector<DenoiseJob*> batch;
    const char* prompts[] = {"a cat", "two cats on a red sofa in the evening sun", ""};
    const double guidance[] = {4, 1, 2.5};
    for (size_t i = 0; i < jobs.size(); ++i) {
      const bool text = description_.max_sequence_length > 0;
      PromptRequest request{.prompt = text ? prompts[i] : absl::StrCat(7 * i),
                            .max_sequence_length = description_.default_max_sequence_length,
                            .guidance_scale = guidance[i],
                            .height = height_,
                            .width = width_};
      if (text) request.negative_prompt = "blurred";
      request.options.true_cfg_scale = guidance[i];
      absl::StatusOr<EncodedPrompt> encoded = (*family)->Encode(request, context);
      TORCH_CHECK(encoded.ok(), std::string(encoded.status().message()));
      jobs[i].guidance = std::move(encoded->guidance);
      jobs[i].geometry = (*family)->Geometry(height_, width_);
      jobs[i].sampler = *MakeSampler(sampler_, kSteps, **family, jobs[i].geometry);
      jobs[i].noise = MakeTesseraNoise(i);
      DrawInitialLatents(jobs[i], **family);
      batch.push_back(&jobs[i]);
    }
    std::vector<at::Tensor> latents;
    for (int step = 0; step < kSteps; ++step) {
      Denoiser(**family, groups).Step(batch);
      latents.push_back(at::stack({jobs[0].latents, jobs[1].latents, jobs[2].latents}));
    }
    return latents;
  }

  std::vector<at::Tensor> RunSerially(at::ScalarType dtype) const {
    SingleRank one;
    return Run(RankGroups::Alone(one), {}, dtype);
  }

  // The worst relative difference, over all ranks and steps, from what one rank makes.
  double WorstError(const Layout& layout, const std::vector<at::Tensor>& serial, at::ScalarType dtype) const {
    const Mesh mesh = *Mesh::Create(layout.mesh, layout.ranks());
    std::vector<double> worst(static_cast<size_t>(layout.ranks()), -1);
    const ThreadRanksOptions options{.groups = MeshGroups(mesh)};
    RunRanks(
        layout.ranks(),
        [&](ThreadRank& thread) {
          const int rank = thread.rank();
          const MeshCommunicators communicators(thread.shared_segment(), rank, options.communicator);
          const WeightShare share = ShareOf(mesh, rank, static_cast<int>(description_.blocks));
          const std::vector<at::Tensor> latents = Run(communicators.groups(), share, dtype);
          double& error = worst[static_cast<size_t>(rank)];
          for (int step = 0; step < kSteps; ++step) {
            const at::Tensor &actual = latents[step], &expected = serial[step];
            error = std::max(error, ((actual - expected).abs().max() / expected.abs().max()).item<double>());
          }
        },
        options);
    return *std::max_element(worst.begin(), worst.end());
  }

  // Of the texts the ones that are legal for the model.
  std::vector<Layout> Legal(std::initializer_list<const char*> texts) const {
    std::vector<Layout> legal;
    for (const char* text : texts) {
      const Layout layout = *ParseLayout(text);
      const LayoutModel model{.heads = static_cast<int>(description_.heads),
                              .blocks = static_cast<int>(description_.blocks),
                              .max_cfg_branches = 2};
      if (CheckLayout(layout, model).ok()) legal.push_back(layout);
    }
    return legal;
  }

 private:
  const FamilyEntry* entry_ = nullptr;
  std::optional<ModelFolder> folder_;
  FamilyDescription description_;
  SamplerConfig sampler_;
  int64_t height_ = 0, width_ = 0;
};

}  // namespace tessera
