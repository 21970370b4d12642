// Generates on a device that is not the host: the image is the same, and no operator gets a tensor of the host together
// with tensors of the device.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "control/model/model_description.h"
#include "kernels/ops.h"
#include "models/families/families.h"
#include "models/families/family_description.h"
#include "models/families/prompt_request.h"
#include "models/loading/load_options.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/engine/image_output.h"
#include "runtime/engine/model_info.h"
#include "runtime/samplers/sampler_config.h"
#include "tests/support/pretend_device.h"

namespace tessera::runtime {
namespace {

// Returns the pixels of two images that share a batch, [2, 24, 44, 3]. The prompts have unequal lengths, so text is
// padded and masked; the samplers have history and noise; the decoded size is cropped.
at::Tensor Generate(const std::string& model, at::ScalarType dtype, at::Device device) {
  at::set_num_threads(1);  // the tensors are tiny
  const c10::InferenceMode no_gradients;
  parallel::SingleRank group;
  parallel::LocalAttention attention;
  const parallel::ForwardContext context{.attention = attention, .tensor = group, .world = group};
  const models::ModelFolder folder = *models::ModelFolder::Open(model);
  const models::FamilyEntry* entry = *models::FindFamily(folder.class_name());
  const models::FamilyDescription description = *entry->describe(folder);
  std::vector<std::string> warnings;
  const SamplerConfig own = *ReadSamplerConfig(folder, warnings);
  const std::unique_ptr<models::Family> family = *entry->load(folder, {.dtype = dtype, .device = device});
  const bool one_size = description.min_size == description.max_size;
  const int64_t height = one_size ? description.min_size : std::max<int64_t>(description.size_multiple, 32);
  const int64_t width = one_size ? description.min_size : height + description.size_multiple;

  std::vector<DenoiseJob> jobs(2);
  std::vector<DenoiseJob*> batch;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const char* prompts[] = {"apple", "a red apple on a wooden table"};
    const models::PromptRequest request{.prompt = description.max_sequence_length > 0 ? prompts[i] : "7",
                                        .max_sequence_length = description.default_max_sequence_length,
                                        .guidance_scale = 4.5,
                                        .height = height,
                                        .width = width};
    jobs[i].guidance = family->Encode(request, context)->guidance;
    jobs[i].geometry = family->Geometry(request.height, request.width);
    const SamplerConfig sampler =
        IsFlow(own) ? own : DefaultSamplerConfig(i == 0 ? SamplerOptions(DpmSolverOptions{}) : DdpmOptions{});
    jobs[i].sampler = *MakeSampler(sampler, 2, *family, jobs[i].geometry);
    jobs[i].noise = MakeTesseraNoise(i);
    DrawInitialLatents(jobs[i], *family);
    batch.push_back(&jobs[i]);
  }
  for (int step = 0; step < 2; ++step) Denoiser(*family, parallel::RankGroups::Alone(group)).Step(batch);
  EXPECT_EQ(jobs[0].latents.device(), device);
  const at::Tensor latents = at::stack({jobs[0].latents, jobs[1].latents});
  return ToPixels(ResizeAndCrop(*family->Decode(latents, context), 24, 28)).cpu();
}

class DevicePurityTest : public testing::TestWithParam<const char*> {};

TEST_P(DevicePurityTest, ADeviceGetsTheImageOfTheHost) {
  const int64_t calls = PretendDeviceCalls();
  const at::Tensor on_device = Generate(GetParam(), at::kDouble, kPretendDevice);
  EXPECT_GT(PretendDeviceCalls(), calls + 500);  // it did not fall back to the host unnoticed
  EXPECT_TRUE(at::equal(on_device, Generate(GetParam(), at::kDouble, at::kCPU)));
}

INSTANTIATE_TEST_SUITE_P(Families, DevicePurityTest,
                         testing::Values("assets/emoji", "tests/golden/pipelines/dit",
                                         "tests/golden/pipelines/flux_dev", "tests/golden/pipelines/hunyuan11",
                                         "tests/golden/pipelines/pixart_alpha", "tests/golden/pipelines/sd35"),
                         [](const auto& info) {
                           const std::string path = info.param;
                           return path.substr(path.rfind('/') + 1);
                         });

TEST(DevicePurityOperatorsTest, NarrowDtypesStayOnTheDevice) {
  EXPECT_EQ(Generate("assets/emoji", at::kBFloat16, kPretendDevice).sizes(), at::IntArrayRef({2, 24, 28, 3}));
}

TEST(DevicePurityOperatorsTest, ATensorOfTheHostIsRefused) {
  const at::Tensor x = at::ones({2, 3}).to(kPretendDevice);
  EXPECT_THROW(at::index_select(x, 0, at::ones({1}, at::kLong)), c10::Error);
  EXPECT_THROW(kernels::RmsNorm(x, at::ones({3}), 1e-6), c10::Error);
}

}  // namespace
}  // namespace tessera::runtime
