// Compares what the front end predicts of a model, from the description that a worker sends, with what the worker
// predicts, and both with what the transformer runs, for every family.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "base/fields/binary_fields.h"
#include "control/host/device.h"
#include "control/model/group_share.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/placement.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "parallel/plan/layout.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/engine/model_info.h"
#include "server/planning/layout_time.h"
#include "server/scheduling/shape_class.h"
#include "server/workers/layout_figures.h"
#include "tests/support/repeated_block.h"
#include "tests/support/valid_layouts.h"

namespace tessera {
namespace {

constexpr double kProcessBytes = 1e9;  // the planner's memory of a process on a device

class PredictionsTest : public testing::TestWithParam<const char*> {
 protected:
  PredictionsTest()
      : folder_(*models::ModelFolder::Open(std::string("tests/golden/pipelines/") + GetParam())),
        entry_(**models::FindFamily(folder_.class_name())),
        worker_(*entry_.describe(folder_)) {
    std::vector<std::string> warnings;
    const std::string sent = base::EncodeFields(
        *runtime::DescribeModel(folder_, entry_.family, worker_, *runtime::ReadSamplerConfig(folder_, warnings)));
    EXPECT_TRUE(base::DecodeFields(sent, front_).ok());
  }

  bool has_one_size() const { return worker_.min_size == worker_.max_size; }

  // The default size, and others of the model's.
  std::vector<control::ImageSize> Sizes() const {
    std::vector<control::ImageSize> sizes = {{.height = worker_.default_height, .width = worker_.default_width}};
    if (has_one_size()) return sizes;
    const int64_t unit = worker_.size_multiple;
    for (const control::ImageSize tokens : {control::ImageSize{.height = 2, .width = 2}, {.height = 3, .width = 5}}) {
      sizes.push_back({.height = tokens.height * unit, .width = tokens.width * unit});
    }
    return sizes;
  }

  control::JobParameters JobOf(control::ImageSize size) const {
    control::JobParameters job = control::DefaultJob(front_);
    job.height = static_cast<int32_t>(size.height);
    job.width = static_cast<int32_t>(size.width);
    return job;
  }

  control::JobParameters LongJob(control::ImageSize size, bool guided) const {
    control::JobParameters job = JobOf(size);
    job.resolution_binning = false;
    job.guidance_scale = guided ? 4 : 1;
    job.options.true_cfg_scale = guided ? 3 : 1;
    if (front_.max_sequence_length > 0) {
      for (int i = 0; i < 400; ++i) job.prompt += "red cat ";
      job.negative_prompt = job.prompt;
    } else {
      job.prompt = "3";
    }
    if (std::ranges::find(front_.options, control::prompt_option::kSkipLayers) != front_.options.end()) {
      job.options.skip_layers = {.layers = {1}, .scale = 2, .start = -1, .stop = 2};
    }
    return job;
  }

  void Step(models::Family& family, const control::JobParameters& parameters) const {
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const models::PromptRequest request = {.prompt = parameters.prompt,
                                           .negative_prompt = parameters.negative_prompt,
                                           .options = parameters.options,
                                           .max_sequence_length = parameters.max_sequence_length,
                                           .guidance_scale = parameters.guidance_scale,
                                           .height = parameters.height,
                                           .width = parameters.width};
    absl::StatusOr<models::EncodedPrompt> prompt =
        family.Encode(request, {.attention = attention, .tensor = one, .world = one});
    ASSERT_TRUE(prompt.ok()) << prompt.status();
    std::vector<std::string> warnings;
    runtime::DenoiseJob job;
    job.guidance = prompt->guidance;
    job.geometry = family.Geometry(parameters.height, parameters.width);
    job.sampler =
        *runtime::MakeSampler(*runtime::ReadSamplerConfig(folder_, warnings), /*steps=*/4, family, job.geometry);
    job.noise = runtime::MakeTesseraNoise(1);
    runtime::DrawInitialLatents(job, family);
    runtime::DenoiseJob* batch[] = {&job};
    runtime::Denoiser(family, parallel::RankGroups::Alone(one)).Step(batch);
  }

  models::ModelFolder folder_;
  const models::FamilyEntry& entry_;
  models::FamilyDescription worker_;
  control::ModelDescription front_;
};

TEST_P(PredictionsTest, SchedulerPlannerAndWorkerPredictTheSameMemory) {
  std::vector<const char*> texts = {"serial"};
  for (const char* text : WholeLayouts()) texts.push_back(text);
  const std::vector<parallel::Layout> layouts = ValidLayouts(texts, worker_);
  EXPECT_GE(layouts.size(), 15u);
  for (const control::ImageSize& size : Sizes()) {
    const control::JobParameters job = JobOf(size);
    const control::ImageWork scheduled = server::ShapeOf("m", front_.cost, job).work();
    models::FamilyDescription of_size = worker_;
    of_size.default_height = size.height;
    of_size.default_width = size.width;
    for (const parallel::Layout& layout : layouts) {
      for (const control::Dtype dtype : {control::Dtype::kFp32, control::Dtype::kBf16}) {
        for (const control::DeviceKind device : {control::DeviceKind::kCpu, control::DeviceKind::kCuda}) {
          const double predicted =
              control::PeakBytes(front_.cost, scheduled, 1, control::ShareOf(layout.mesh, device, dtype));
          EXPECT_EQ(static_cast<int64_t>(std::ceil(predicted)), runtime::RunBytes(of_size, dtype, layout.mesh, device))
              << parallel::LayoutText(layout) << " " << size.height << "x" << size.width;
          if (device == control::DeviceKind::kCpu || job.resolution_binning) continue;
          const server::PlannedImage planned = {.width = job.width, .height = job.height, .steps = 1, .dtype = dtype};
          const auto weights = static_cast<double>(server::WeightsOf(layout, front_, dtype).first);
          EXPECT_EQ(*server::MemoryOf(layout, front_, planned),
                    static_cast<uint64_t>(weights + predicted + kProcessBytes))
              << parallel::LayoutText(layout);
        }
      }
    }
  }
}

// The front end predicts the memory of any storage from these sizes.
TEST_P(PredictionsTest, TheSizesOfTheTransformersWeightsAreThoseOfItsFiles) {
  const auto is_transformer = [](const auto& each) { return each.role == control::ComponentRole::kTransformer; };
  const auto sizes = std::ranges::find_if(front_.weights, is_transformer);
  const auto component = std::ranges::find_if(front_.components, is_transformer);
  ASSERT_TRUE(sizes != front_.weights.end() && component != front_.components.end());
  EXPECT_EQ(sizes->blocks.size(), front_.transformer.exchange.blocks.size());
  control::WeightSize all = sizes->frame;
  all += sizes->modulations;
  for (const control::WeightSize& block : sizes->blocks) {
    EXPECT_GT(block.matrices, 0u);
    all += block;
  }
  // The files may hold tables that are computed, and lack norms that are the identity.
  const auto parameters = static_cast<double>(component->parameters);
  EXPECT_NEAR(static_cast<double>(all.elements), parameters, parameters / 10);
  EXPECT_TRUE(control::CheckRules(all).ok());
  EXPECT_EQ(all.stored_bytes, 0u) << "the files are not quantized";
}

TEST_P(PredictionsTest, AtTheDefaultSizeAStepIsTheSumOfTheBlocksThatStagesAreBalancedBy) {
  const control::ImageWork work = control::WorkOf(front_.cost, control::DefaultJob(front_));
  double blocks = 0;
  for (const double flops : front_.transformer.block_flops) blocks += flops;
  EXPECT_GT(blocks, 0);
  EXPECT_NEAR(control::StepFlops(front_.cost, work) / static_cast<double>(work.rows) / blocks, 1, 1e-12);
  EXPECT_EQ(front_.transformer.block_flops, worker_.block_flops);
  EXPECT_GT(control::DecodeFlops(front_.cost, work), 0);
  EXPECT_EQ(control::EncodeFlops(front_.cost, work) > 0, front_.max_sequence_length > 0);
}

// The job's prompts have more tokens than the model reads, and every kind of guidance that the family has.
TEST_P(PredictionsTest, ThePredictedTokensAreThoseThatTheTransformerRuns) {
  const c10::InferenceMode no_gradients;
  const std::unique_ptr<models::Family> family = *entry_.load(folder_, {.dtype = at::kFloat, .device = at::kCPU});
  RepeatedFamily recorded(*family, /*blocks=*/2);
  std::mutex mutex;
  int64_t rows = 0;
  control::ImageWork work;
  recorded.block().before_block = [&](int index, const models::BlockState& state) {
    if (index > 0) return;
    const std::lock_guard lock(mutex);
    rows += state.image.size(0);
    EXPECT_EQ(state.image.size(1), control::ImageTokens(front_.cost, work.size));
    EXPECT_EQ(state.text.defined() ? state.text.size(1) : 0, work.text_tokens);
  };
  for (const control::ImageSize& size : Sizes()) {
    for (const bool guided : {true, false}) {
      const control::JobParameters job = LongJob(size, guided);
      work = control::WorkOf(front_.cost, job);
      rows = 0;
      Step(recorded, job);
      EXPECT_EQ(rows, work.rows) << (guided ? "guided" : "without guidance");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, PredictionsTest,
                         testing::Values("dit", "flux_dev", "flux_schnell", "hunyuan11", "hunyuan12", "pixart_alpha",
                                         "pixart_sigma", "sd3", "sd35"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace tessera
