// NoiseSource provides a job's noise as tensors.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::runtime {

// The noise of one image. Not thread-safe; calls are made in the order of the reference pipelines.
class NoiseSource {
 public:
  virtual ~NoiseSource() = default;

  // Returns standard normal values [channels, height, width] on the host, in fp32 or fp64 according to `dtype`.
  virtual at::Tensor Initial(at::IntArrayRef shape, at::ScalarType dtype) = 0;
  // For a sample of what the autoencoder encodes a picture as; `picture` counts the samples of one image.
  virtual at::Tensor ForPicture(int picture, at::IntArrayRef shape, at::ScalarType dtype) = 0;
  virtual at::Tensor ForStep(int step, at::IntArrayRef shape, at::ScalarType dtype) = 0;
};

// Makes the counter-based noise of runtime/denoising/noise.h.
std::unique_ptr<NoiseSource> MakeTesseraNoise(uint64_t seed);

// Makes the consecutive draws of torch.Generator("cpu").manual_seed(seed), in the dtype of the model like the reference
// pipelines, so that pictures can be compared across tools. `model_dtype` is fp64, fp32 or bf16. The bits equal the
// reference's if LibTorch uses AVX2 or better; otherwise the draws differ from these by up to 1e-6.
std::unique_ptr<NoiseSource> MakeTorchCpuNoise(uint64_t seed, at::ScalarType model_dtype);

}  // namespace tessera::runtime
