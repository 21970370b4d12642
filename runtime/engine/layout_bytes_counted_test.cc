// Compares the bytes that communicators count in a step with the closed forms of parallel/plan/layout_bytes.h.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>
#include <ostream>
#include <tuple>

#include "control/model/model_description.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "parallel/host/mesh_communicators.h"
#include "parallel/plan/layout.h"
#include "parallel/plan/layout_bytes.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/denoising/mesh_forward.h"
#include "runtime/engine/model_info.h"
#include "tests/support/golden_pipeline.h"
#include "tests/support/late_nccl.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/valid_layouts.h"

namespace tessera::runtime {

void PrintTo(const parallel::ExchangedBytes& bytes, std::ostream* out) {
  *out << "cfg " << bytes.cfg << ", pipe " << bytes.pipe << ", sequence " << bytes.sequence << ", ring " << bytes.ring
       << ", ulysses " << bytes.ulysses << ", tensor " << bytes.tensor;
}

namespace {

int64_t CountedBytes(const parallel::Communicator& group) {
  int64_t bytes = 0;
  for (int c = 0; c < parallel::kCollectives; ++c) bytes += group.count(static_cast<parallel::Collective>(c)).bytes;
  return bytes;
}

// One golden model and two requests to it: three rows of prompts of unequal length, on a grid whose sizes nothing
// divides, and a branch that skips a block if the family supports it.
class CountedStep : public testing::TestWithParam<const char*> {
 protected:
  CountedStep()
      : folder_(*models::ModelFolder::Open(GoldenPipeline(GetParam()))),
        entry_(**models::FindFamily(folder_.class_name())),
        description_(*entry_.describe(folder_)) {
    const bool one_size = description_.min_size == description_.max_size;
    // Padding of an image is exchanged between ranks and no part of its prediction: Z-Image's has none at this size.
    const bool pads = entry_.family == "z_image";
    height_ = one_size ? description_.min_size : (pads ? 4 : 3) * description_.size_multiple;
    width_ = one_size ? description_.min_size : (pads ? 8 : 5) * description_.size_multiple;
  }

  std::vector<models::EncodedPrompt> Encode(at::ScalarType dtype, at::Device device = at::kCPU) const {
    const c10::InferenceMode no_gradients;
    const std::unique_ptr<models::Family> family = *entry_.load(folder_, {.dtype = dtype, .device = device});
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const bool text = description_.max_sequence_length > 0;
    std::vector<models::EncodedPrompt> prompts;
    for (const bool guided : {true, false}) {
      models::PromptRequest request{
          .prompt = text ? (guided ? "a cat" : "two cats on a red sofa in the evening sun") : "3",
          .max_sequence_length = description_.default_max_sequence_length,
          .guidance_scale = guided ? 4.0 : 1.0,
          .height = height_,
          .width = width_};
      if (text) request.negative_prompt = "blurred";
      request.options.true_cfg_scale = guided ? 3 : 1;
      request.options.skip_layers = {.layers = {1}, .scale = 2, .start = -1, .stop = 2};
      prompts.push_back(*family->Encode(request, {.attention = attention, .tensor = one, .world = one}));
    }
    return prompts;
  }

  // Returns the forward passes of a step: rows of equal shapes and blocks are grouped.
  std::vector<parallel::ForwardPass> Passes(const std::vector<models::EncodedPrompt>& prompts,
                                            const models::Family& family) const {
    using Key = std::tuple<std::vector<int>, int64_t, std::vector<std::vector<int64_t>>>;
    std::map<Key, parallel::ForwardPass> passes;
    size_t branches = 0;
    for (const models::EncodedPrompt& prompt : prompts) branches = std::max(branches, prompt.guidance.branches.size());
    for (size_t b = 0; b < branches; ++b) {
      for (const models::EncodedPrompt& prompt : prompts) {
        if (b >= prompt.guidance.branches.size()) continue;
        const models::GuidanceBranch& branch = prompt.guidance.branches[b];
        const int64_t tokens = branch.row.text.defined() ? branch.row.text.size(0) : 0;
        std::vector<std::vector<int64_t>> shapes;
        for (const at::Tensor& extra : branch.row.extras) shapes.push_back(extra.sizes().vec());
        parallel::ForwardPass& pass = passes[{branch.skipped_blocks, family.masks_padding() ? 0 : tokens, shapes}];
        pass.image_tokens = family.Geometry(height_, width_).grid.count();
        pass.text_tokens.push_back(tokens);
        pass.element_bytes = static_cast<int64_t>(c10::elementSize(family.dtype()));
        pass.skipped_blocks = branch.skipped_blocks;
      }
    }
    std::vector<parallel::ForwardPass> result;
    for (const auto& [key, pass] : passes) result.push_back(pass);
    return result;
  }

  struct Bytes {
    parallel::ExchangedBytes counted, closed_form;
  };

  // Returns the bytes of every rank.
  std::vector<Bytes> Step(const parallel::Layout& layout, const std::vector<models::EncodedPrompt>& prompts,
                          at::ScalarType dtype, at::Device device = at::kCPU) const {
    const parallel::Mesh mesh = *parallel::Mesh::Create(layout.mesh, layout.ranks());
    const std::vector<int> bounds = StageBounds(description_.block_flops, mesh.size(parallel::Axis::kPipe));
    std::vector<Bytes> bytes(static_cast<size_t>(layout.ranks()));
    const ThreadRanksOptions options{.groups = parallel::MeshGroups(mesh)};
    RunRanks(
        layout.ranks(),
        [&](ThreadRank& thread) {
          const c10::InferenceMode no_gradients;
          const int rank = thread.rank();
          const parallel::MeshCommunicators communicators(device, thread.shared_segment(), rank, options.communicator);
          EXPECT_EQ(communicators.uses_nccl(), !device.is_cpu());
          const parallel::RankGroups groups = communicators.groups();
          const std::unique_ptr<models::Family> family = *entry_.load(
              folder_,
              {.dtype = dtype, .device = device, .share = ShareOf(mesh, rank, bounds), .encodes_prompts = false});
          std::vector<std::string> warnings;
          std::vector<DenoiseJob> jobs(prompts.size());
          std::vector<DenoiseJob*> batch;
          for (size_t i = 0; i < jobs.size(); ++i) {
            jobs[i].guidance = prompts[i].guidance;
            jobs[i].geometry = family->Geometry(height_, width_);
            jobs[i].sampler = *MakeSampler(*ReadSamplerConfig(folder_, warnings), 2, *family, jobs[i].geometry);
            jobs[i].noise = MakeTesseraNoise(i);
            DrawInitialLatents(jobs[i], *family);
            batch.push_back(&jobs[i]);
          }
          // Reading the prompts is no part of a step.
          for (DenoiseJob& job : jobs) {
            for (size_t branch = 0; branch < job.guidance.branches.size(); ++branch) {
              PrepareBranch(job, branch, *family, groups);
            }
          }
          const int64_t reading = CountedBytes(groups.tensor);
          Denoiser(*family, groups, {.stage_bounds = bounds}).Step(batch);
          Bytes& own = bytes[static_cast<size_t>(rank)];
          own.counted = {.cfg = CountedBytes(groups.cfg),
                         .pipe = CountedBytes(groups.pipe),
                         .sequence = CountedBytes(groups.sequence),
                         .ring = CountedBytes(groups.ring),
                         .ulysses = CountedBytes(groups.ulysses),
                         .tensor = CountedBytes(groups.tensor) - reading};
          for (const parallel::ForwardPass& pass : Passes(prompts, *family)) {
            own.closed_form += parallel::PassBytes(description_.exchange, mesh, bounds, rank, pass);
          }
          EXPECT_EQ(CountedBytes(groups.world), 0);
        },
        options);
    return bytes;
  }

  std::vector<parallel::Layout> Valid(std::initializer_list<const char*> texts) const {
    return ValidLayouts(texts, description_);
  }

  models::ModelFolder folder_;
  const models::FamilyEntry& entry_;
  models::FamilyDescription description_;
  int64_t height_ = 0, width_ = 0;
};

void PrintRow(const std::string& model, const parallel::Layout& layout, const parallel::ExchangedBytes& most) {
  std::printf("%-13s %-28s %9lld %9lld %9lld %9lld %9lld %9lld\n", model.c_str(), parallel::LayoutText(layout).c_str(),
              static_cast<long long>(most.cfg), static_cast<long long>(most.pipe),
              static_cast<long long>(most.sequence), static_cast<long long>(most.ring),
              static_cast<long long>(most.ulysses), static_cast<long long>(most.tensor));
}

TEST_P(CountedStep, EveryRankSendsTheBytesOfTheClosedForms) {
  const std::vector<models::EncodedPrompt> prompts = Encode(at::kFloat);
  std::printf("bytes a step, of the rank that sends most\n%-13s %-28s %9s %9s %9s %9s %9s %9s\n", "model", "layout",
              "cfg", "pipe", "sequence", "ring", "ulysses", "tensor");
  const std::vector<parallel::Layout> layouts = Valid({"cfg=2",
                                                       "pipe=2",
                                                       "pipe=3",
                                                       "ring=2",
                                                       "ring=3",
                                                       "ring=8",
                                                       "ulysses=2",
                                                       "ulysses=4",
                                                       "tensor=2",
                                                       "tensor=4",
                                                       "cfg=2,pipe=2",
                                                       "cfg=2,ring=2",
                                                       "cfg=2,ulysses=2",
                                                       "cfg=2,tensor=2",
                                                       "pipe=2,ring=2",
                                                       "pipe=2,ulysses=2",
                                                       "pipe=2,tensor=2",
                                                       "ring=2,ulysses=2",
                                                       "ring=3,ulysses=2",
                                                       "ring=2,tensor=2",
                                                       "ulysses=2,tensor=2",
                                                       "cfg=2,ring=2,ulysses=2",
                                                       "cfg=2,pipe=2,tensor=2",
                                                       "pipe=2,ring=2,ulysses=2",
                                                       "ring=2,ulysses=2,tensor=2"});
  EXPECT_GE(layouts.size(), 20u);
  for (const parallel::Layout& layout : layouts) {
    parallel::ExchangedBytes most;
    const std::vector<Bytes> ranks = Step(layout, prompts, at::kFloat);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      const auto& [counted, closed_form] = ranks[rank];
      EXPECT_EQ(counted, closed_form) << parallel::LayoutText(layout) << ", rank " << rank;
      if (counted.total() > most.total()) most = counted;
    }
    EXPECT_GT(most.total(), 0);
    PrintRow(GetParam(), layout, most);
  }
}

TEST_P(CountedStep, ASmallerDtypeSendsAsManyElements) {
  const std::vector<models::EncodedPrompt> prompts = Encode(at::kBFloat16);
  for (const parallel::Layout& layout : Valid({"cfg=2,ulysses=2", "pipe=2,ring=2", "tensor=2"})) {
    for (const auto& [counted, closed_form] : Step(layout, prompts, at::kBFloat16)) {
      EXPECT_EQ(counted, closed_form) << parallel::LayoutText(layout);
    }
  }
}

TEST_P(CountedStep, ThroughNcclEveryRankSendsThoseBytes) {
  LateNccl nccl;
  const std::vector<models::EncodedPrompt> prompts = Encode(at::kFloat, kPretendDevice);
  for (const parallel::Layout& layout :
       Valid({"cfg=2,ulysses=2", "pipe=2,ring=2", "ring=2,ulysses=2,tensor=2", "ulysses=4"})) {
    const std::vector<Bytes> ranks = Step(layout, prompts, at::kFloat, kPretendDevice);
    for (const auto& [counted, closed_form] : ranks) EXPECT_EQ(counted, closed_form) << parallel::LayoutText(layout);
    EXPECT_GT(ranks[0].counted.total(), 0);
  }
  EXPECT_EQ(nccl.problems(), std::vector<std::string>());
}

INSTANTIATE_TEST_SUITE_P(Families, CountedStep,
                         testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha", "flux2_klein_base",
                                         "qwen_image", "sd3", "sd35", "z_image_base"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
