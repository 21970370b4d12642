// Where a job's noise comes from, as tensors.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <string_view>

namespace tessera::runtime {

// One image's noise. Not thread-safe; the calls are made in the order of the steps.
class NoiseSource {
 public:
  virtual ~NoiseSource() = default;

  // Standard normal [channels, height, width] on the host, in fp32 or fp64 as `dtype` says.
  virtual at::Tensor Initial(at::IntArrayRef shape, at::ScalarType dtype) = 0;
  virtual at::Tensor ForStep(int step, at::IntArrayRef shape, at::ScalarType dtype) = 0;
};

// The counter-based noise of runtime/denoising/noise.h.
std::unique_ptr<NoiseSource> MakeTesseraNoise(uint64_t seed);

// The draws of torch.Generator("cpu").manual_seed(seed), one after another, made in the dtype of the model as the
// reference pipelines do: pictures can be compared across tools. `model_dtype` is fp64, fp32 or bf16. The bits are the
// reference's where LibTorch computes with AVX2 or more; with less its draws differ from these by up to 1e-6.
std::unique_ptr<NoiseSource> MakeTorchCpuNoise(uint64_t seed, at::ScalarType model_dtype);

}  // namespace tessera::runtime
