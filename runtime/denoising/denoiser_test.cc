#include "runtime/denoising/denoiser.h"

#include <ATen/Version.h>
#include <gtest/gtest.h>

#include "models/families/families.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "models/weights/safetensors.h"
#include "runtime/engine/image_output.h"
#include "tests/support/device_batches.h"

namespace tessera::runtime {
namespace {

constexpr char kEmoji[] = "assets/emoji";

class DenoiserTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    const absl::StatusOr<models::ModelFolder> folder = models::ModelFolder::Open(kEmoji);
    ASSERT_TRUE(folder.ok()) << folder.status();
    const absl::StatusOr<const models::FamilyEntry*> entry = models::FindFamily(folder->class_name());
    ASSERT_TRUE(entry.ok());
    absl::StatusOr<std::unique_ptr<models::Family>> loaded = (*entry)->load(*folder, {.dtype = at::kDouble});
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    family_ = loaded->release();
  }
  static void TearDownTestSuite() {
    delete family_;
    family_ = nullptr;
  }

  DenoiseJob Job(const std::string& prompt, uint64_t seed, double guidance, const char* sampler, int steps) {
    const models::PromptRequest request{.prompt = prompt,
                                        .negative_prompt = "blurred",
                                        .max_sequence_length = 24,
                                        .guidance_scale = guidance,
                                        .height = 48,
                                        .width = 64};
    DenoiseJob job;
    job.guidance = family_->Encode(request, context_)->guidance;
    job.geometry = family_->Geometry(48, 64);
    job.sampler = *Sampler::Create(*WithSampler(DefaultSamplerConfig(DpmSolverOptions{}), sampler), steps, {});
    job.noise = MakeTesseraNoise(seed);
    DrawInitialLatents(job, *family_);
    return job;
  }

  at::Tensor Run(DenoiseJob job) {
    DenoiseJob* batch[] = {&job};
    while (!job.sampler->done()) Denoiser(*family_, groups_).Step(batch);
    return job.latents;
  }

  static double Relative(const at::Tensor& a, const at::Tensor& b) {
    return ((a - b).abs().max() / b.abs().max()).item<double>();
  }

  static models::Family* family_;
  c10::InferenceMode no_gradients_;
  parallel::SingleRank group_;
  parallel::RankGroups groups_ = parallel::RankGroups::Alone(group_);
  parallel::LocalAttention attention_;
  parallel::ForwardContext context_{.attention = attention_, .tensor = group_, .world = group_};
};
models::Family* DenoiserTest::family_ = nullptr;

// The jobs have prompts of unequal length and are at different steps; one has a stochastic sampler, the other a
// multistep one.
TEST_F(DenoiserTest, AJobInABatchGivesWhatItGivesAlone) {
  const auto first = [&] { return Job("red apple", 1, 4, "dpm++2", 4); };
  const auto second = [&] { return Job("a very happy grinning face with big eyes", 2, 2.5, "ddpm", 6); };
  const at::Tensor alone_first = Run(first()), alone_second = Run(second());

  DenoiseJob a = first(), b = second();
  Denoiser denoiser(*family_, groups_);
  DenoiseJob* ahead[] = {&b};
  denoiser.Step(ahead);
  DenoiseJob* both[] = {&a, &b};
  while (!a.sampler->done()) denoiser.Step(both);
  while (!b.sampler->done()) denoiser.Step(ahead);
  EXPECT_TRUE(at::equal(a.latents, alone_first));
  EXPECT_TRUE(at::equal(b.latents, alone_second));
}

// A job that begins from a picture begins at a later step, and it may lie where a job that has ended lay.
TEST_F(DenoiserTest, AnotherJobAtThePlaceAndTheStepOfOneIsNotTakenForIt) {
  const auto later = [&] {
    DenoiseJob job = Job("a very happy grinning face with big eyes", 2, 2.5, "ddim", 4);
    job.id = 2;
    job.sampler->BeginAt(1);
    job.next_step = 1;
    return job;
  };
  const at::Tensor alone = Run(later());

  DenoiseJob job = Job("red apple", 1, 4, "ddim", 4);
  job.id = 1;
  DenoiseJob* batch[] = {&job};
  Denoiser denoiser(*family_, groups_);
  denoiser.Step(batch);
  job = later();
  while (!job.sampler->done()) denoiser.Step(batch);
  EXPECT_TRUE(at::equal(job.latents, alone));
}

TEST_F(DenoiserTest, TheSameSeedGivesTheSameBitsAndAnotherSeedAnotherImage) {
  const at::Tensor one = Run(Job("red apple", 7, 4, "ddpm", 3));
  EXPECT_TRUE(at::equal(one, Run(Job("red apple", 7, 4, "ddpm", 3))));
  EXPECT_GT(Relative(Run(Job("red apple", 8, 4, "ddpm", 3)), one), 0.1);
}

TEST_F(DenoiserTest, GuidanceOfOneIsTheConditionalPredictionAlone) {
  DenoiseJob job = Job("red apple", 1, 1, "ddim", 4);
  EXPECT_EQ(job.guidance.branches.size(), 1);
  EXPECT_EQ(job.guidance.branches[0].WeightAt(0, 1, /*timestep=*/500), 1);
}

TEST_F(DenoiserTest, LatentsThatStopBeingFiniteAreAnErrorAndNoImage) {
  DenoiseJob job = Job("red apple", 1, 4, "ddim", 4);
  job.latents[0][0][0] = std::numeric_limits<double>::quiet_NaN();
  DenoiseJob* batch[] = {&job};
  EXPECT_TRUE(IsFinite(job));
  Denoiser denoiser(*family_, groups_);
  denoiser.Step(batch);
  EXPECT_FALSE(IsFinite(job));
}

// Counts the calls of a transformer and their rows.
class CountingTransformer final : public models::Transformer {
 public:
  explicit CountingTransformer(const models::Transformer& counted) : counted_(counted) {}

  struct Counts {
    int sizes = 0, prompts = 0, embedded_steps = 0, modulations = 0, blocks = 0;
    int64_t modulated_rows = 0;
  };
  mutable Counts counts;

  int num_blocks() const override { return counted_.num_blocks(); }
  bool joint_text() const override { return counted_.joint_text(); }
  std::vector<parallel::LongSkip> long_skips() const override { return counted_.long_skips(); }
  int64_t output_features() const override { return counted_.output_features(); }
  models::Positions Place(models::TokenGrid grid, int64_t text, at::Device device) const override {
    ++counts.sizes;
    return counted_.Place(grid, text, device);
  }
  models::Positions PlaceText(int64_t tokens, models::TokenGrid grid, at::Device device) const override {
    return counted_.PlaceText(tokens, grid, device);
  }
  models::PromptState Read(const at::Tensor& text, const std::vector<at::Tensor>& extras,
                           const parallel::ForwardContext& context) const override {
    ++counts.prompts;
    return counted_.Read(text, extras, context);
  }
  models::StepEmbedding EmbedStep(const at::Tensor& timesteps, const at::Tensor& prompt,
                                  const parallel::ForwardContext& context) const override {
    ++counts.embedded_steps;
    return counted_.EmbedStep(timesteps, prompt, context);
  }
  at::Tensor Modulate(int index, const models::StepEmbedding& step,
                      const parallel::ForwardContext& context) const override {
    ++counts.modulations;
    at::Tensor modulation = counted_.Modulate(index, step, context);
    counts.modulated_rows += modulation.size(0);
    return modulation;
  }
  at::Tensor Embed(const at::Tensor& patches, const at::Tensor& positions,
                   const parallel::ForwardContext& context) const override {
    return counted_.Embed(patches, positions, context);
  }
  void Block(int index, models::BlockState& state, const models::Conditioning& conditioning,
             const parallel::ForwardContext& context) const override {
    ++counts.blocks;
    counted_.Block(index, state, conditioning, context);
  }
  at::Tensor Head(const models::BlockState& state, const models::Conditioning& conditioning,
                  const parallel::ForwardContext& context) const override {
    return counted_.Head(state, conditioning, context);
  }

 private:
  const models::Transformer& counted_;
};

class CountingFamily final : public models::Family {
 public:
  explicit CountingFamily(models::Family& family) : counting(family.transformer()), family_(family) {}
  CountingTransformer counting;

  const models::Transformer& transformer() const override { return counting; }
  at::ScalarType dtype() const override { return family_.dtype(); }
  at::Device device() const override { return family_.device(); }
  int64_t weight_bytes() const override { return family_.weight_bytes(); }
  models::LatentGeometry Geometry(int64_t height, int64_t width) const override {
    return family_.Geometry(height, width);
  }
  bool masks_padding() const override { return family_.masks_padding(); }
  absl::StatusOr<models::EncodedPrompt> Encode(const models::PromptRequest& request,
                                               const parallel::ForwardContext& context) override {
    return family_.Encode(request, context);
  }
  at::Tensor ToPatches(const at::Tensor& latents) const override { return family_.ToPatches(latents); }
  at::Tensor ToPrediction(const at::Tensor& output, const models::LatentGeometry& geometry) const override {
    return family_.ToPrediction(output, geometry);
  }
  absl::StatusOr<at::Tensor> Decode(const at::Tensor& latents, const parallel::ForwardContext& context) override {
    return family_.Decode(latents, context);
  }
  absl::StatusOr<models::LatentPosterior> EncodeImage(const at::Tensor& image,
                                                      const parallel::ForwardContext& context) override {
    return family_.EncodeImage(image, context);
  }

 private:
  models::Family& family_;
};

// Jobs join and leave, with and without guidance. There is one table of positions for their one size, one reading for
// each prompt, and one product per block for the modulations of all steps of each, while blocks run in every step.
TEST_F(DenoiserTest, WhatASizeAPromptAndAStepSayIsComputedOnce) {
  CountingFamily family(*family_);
  Denoiser denoiser(family, groups_);
  DenoiseJob a = Job("red apple", 1, 4, "ddim", 4), b = Job("a very happy grinning face", 2, 1, "ddpm", 6);
  DenoiseJob *first[] = {&b}, *both[] = {&a, &b};
  denoiser.Step(first);
  while (!a.done()) denoiser.Step(both);
  denoiser.Predict(first);
  denoiser.Step(first);
  const int blocks = family.transformer().num_blocks(), rows = 3;  // two branches of a, one of b
  const CountingTransformer::Counts& counts = family.counting.counts;
  EXPECT_EQ(counts.sizes, 1);
  EXPECT_EQ(counts.prompts, rows);
  EXPECT_EQ(counts.embedded_steps, rows);
  EXPECT_EQ(counts.modulations, rows * (blocks + 1));
  EXPECT_EQ(counts.modulated_rows, (2 * 4 + 6) * (blocks + 1));
  EXPECT_GE(counts.blocks, 6 * blocks);
  denoiser.Flush();
  EXPECT_TRUE(a.prepared.empty()) << "a job that is done keeps what its steps needed";
}

TEST_F(DenoiserTest, ModulationsOfManyStepsAreKeptForSomeOfThemAtATime) {
  CountingFamily family(*family_);
  constexpr int kSteps = PreparedBranch::kStepsAtOnce + 3;
  DenoiseJob job = Job("red apple", 1, 1, "ddim", kSteps);
  PreparedBranch& branch = PrepareBranch(job, 0, family, groups_);
  const models::ConditioningRow& row = job.guidance.branches[0].row;
  std::vector<at::Tensor> extras;
  for (const at::Tensor& extra : row.extras) extras.push_back(extra.unsqueeze(0));
  const models::StepEmbedding alone = family_->transformer().EmbedStep(
      at::full({1}, job.sampler->timestep(kSteps - 1), at::kDouble),
      family_->transformer().Read(row.text.unsqueeze(0), extras, context_).vector, context_);
  for (int step = 0; step < kSteps; ++step) branch.Modulation(1, step);
  EXPECT_EQ(family.counting.counts.embedded_steps, 2);
  EXPECT_EQ(family.counting.counts.modulations, 2);
  EXPECT_EQ(family.counting.counts.modulated_rows, kSteps);
  EXPECT_TRUE(at::equal(branch.Modulation(1, kSteps - 1), family_->transformer().Modulate(1, alone, context_)));
}

// The goldens' initial latents are torch.randn of a CPU generator, with the seed that the goldens' generator uses.
TEST(NoiseSourceTest, TorchCpuDrawsWhatTheReferenceDraws) {
  const absl::StatusOr<models::SafetensorsFile> gold =
      models::SafetensorsFile::Open("tests/golden/trajectories/pixart_alpha.0.safetensors", "golden");
  ASSERT_TRUE(gold.ok()) << gold.status();
  const models::StoredTensor* latents = gold->Find("latents.initial");
  ASSERT_NE(latents, nullptr);
  const at::Tensor expected = at::empty(latents->shape, at::kFloat)[0];
  ASSERT_TRUE(gold->Read(*latents, 0, {static_cast<std::byte*>(expected.data_ptr()), expected.nbytes()}).ok());
  const at::Tensor drawn = MakeTorchCpuNoise(71968910150479045, at::kFloat)->Initial(expected.sizes(), at::kFloat);
  if (at::get_cpu_capability() != "DEFAULT") {
    EXPECT_TRUE(at::equal(drawn, expected));
    return;
  }
  // Without AVX2 LibTorch uses other functions for logarithms and cosines, so the same draws are rounded differently:
  // 40 % of the values, by at most 7.8e-7 and on average 7.8e-8. A value from a different draw would be off by about 1.
  const at::Tensor difference = (drawn.to(at::kDouble) - expected).abs();
  EXPECT_LE(difference.max().item<double>(), 1e-6);
  EXPECT_LE(difference.mean().item<double>(), 1e-7);
}

// 2912 · (3813 / 2912) is slightly less than 3813 in fp64.
TEST(ImageOutputTest, ResizingNeverFallsShortOfTheCrop) {
  EXPECT_EQ(ResizeAndCrop(at::zeros({1, 1, 3064, 2912}), 785, 3813).sizes(), at::IntArrayRef({1, 1, 785, 3813}));
}

TEST(NoiseSourceTest, TesseraNoiseIsRoundedOnceFromDouble) {
  const at::Tensor wide = MakeTesseraNoise(5)->ForStep(3, {2, 3, 4}, at::kDouble);
  EXPECT_TRUE(at::equal(MakeTesseraNoise(5)->ForStep(3, {2, 3, 4}, at::kFloat), wide.to(at::kFloat)));
}

// A picture depends only on its request on a device too, although the device's products round depending on the shapes
// of their inputs.
class DeviceBatchesTest : public testing::TestWithParam<const char*> {};

TEST_P(DeviceBatchesTest, AnImageOfABatchIsThatOfItsRequestAlone) {
  const LayoutRuns runs(GetParam());
  std::vector<parallel::Layout> layouts = runs.Valid({"cfg=2", "ulysses=2", "tensor=2", "pipe=2", "cfg=2,ring=2"});
  layouts.emplace_back();  // one rank
  for (const parallel::Layout& layout : layouts) {
    EXPECT_TRUE(
        at::equal(LatentsOnDevice(runs, layout, /*together=*/true), LatentsOnDevice(runs, layout, /*together=*/false)))
        << parallel::LayoutText(layout);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceBatchesTest, testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha"),
                         [](const auto& info) { return info.param; });

// The same holds for steps patch by patch if no text is cut with the image.
TEST(DevicePatchesTest, AnImageOfABatchIsThatOfItsRequestAlone) {
  for (const char* model : {"dit", "pixart_alpha"}) {
    const LayoutRuns runs(model);
    for (const parallel::Layout& layout : runs.Valid({"pipe=2,patches=2,warmup=1", "ulysses=2,patches=2,warmup=1"})) {
      EXPECT_TRUE(at::equal(LatentsOnDevice(runs, layout, /*together=*/true),
                            LatentsOnDevice(runs, layout, /*together=*/false)))
          << model << " " << parallel::LayoutText(layout);
    }
  }
}

}  // namespace
}  // namespace tessera::runtime
