// A generation on a device that is not the host: the same image comes out, and no operator is given a tensor of the
// host among those of the device.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "kernels/ops.h"
#include "models/families.h"
#include "runtime/denoiser.h"
#include "runtime/image_output.h"
#include "runtime/pretend_device.h"
#include "runtime/samplers/sampler_config.h"

namespace tessera {
namespace {

// Pixels of two images that share a batch, [2, 24, 44, 3]. Prompts of unequal length, so that text is padded and
// masked; samplers with history and with noise; a decoded size that is cropped.
at::Tensor Generate(at::ScalarType dtype, at::Device device) {
  at::set_num_threads(1);  // the tensors are tiny
  const c10::InferenceMode no_gradients;
  SingleRank group;
  LocalAttention attention;
  const ForwardContext context{.attention = attention, .tensor = group};
  const ModelFolder folder = *ModelFolder::Open("assets/emoji");
  const std::unique_ptr<Family> family =
      *(*FindFamily(folder.class_name()))->load(folder, {.dtype = dtype, .device = device});

  std::vector<DenoiseJob> jobs(2);
  std::vector<DenoiseJob*> batch;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const PromptRequest request{.prompt = i == 0 ? "apple" : "a red apple on a wooden table",
                                .max_sequence_length = 24,
                                .guidance_scale = 4.5,
                                .height = 32,
                                .width = 48};
    jobs[i].branches = family->Encode(request, context)->branches;
    jobs[i].geometry = family->Geometry(request.height, request.width);
    jobs[i].sampler =
        *Sampler::Create(DefaultSamplerConfig(i == 0 ? SamplerClass::kDpmSolver : SamplerClass::kDdpm), 2);
    jobs[i].noise = MakeTesseraNoise(i);
    DrawInitialLatents(jobs[i], *family);
    batch.push_back(&jobs[i]);
  }
  for (int step = 0; step < 2; ++step) Denoiser(*family, context).Step(batch);
  EXPECT_EQ(jobs[0].latents.device(), device);
  const at::Tensor latents = at::stack({jobs[0].latents, jobs[1].latents});
  return ToPixels(ResizeAndCrop(family->Decode(latents, context), 24, 44)).cpu();
}

TEST(DevicePurityTest, ADeviceGetsTheImageOfTheHost) {
  const int64_t calls = PretendDeviceCalls();
  const at::Tensor on_device = Generate(at::kDouble, kPretendDevice);
  EXPECT_GT(PretendDeviceCalls(), calls + 1000);  // it did not fall back to the host unseen
  EXPECT_TRUE(at::equal(on_device, Generate(at::kDouble, at::kCPU)));
}

TEST(DevicePurityTest, NarrowDtypesStayOnTheDevice) {
  EXPECT_EQ(Generate(at::kBFloat16, kPretendDevice).sizes(), at::IntArrayRef({2, 24, 44, 3}));
}

TEST(DevicePurityTest, ATensorOfTheHostIsRefused) {
  const at::Tensor x = at::ones({2, 3}).to(kPretendDevice);
  EXPECT_THROW(at::index_select(x, 0, at::ones({1}, at::kLong)), c10::Error);
  EXPECT_THROW(RmsNorm(x, at::ones({3}), 1e-6), c10::Error);
}

}  // namespace
}  // namespace tessera
