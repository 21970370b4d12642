#include "runtime/denoising/noise_source.h"

#include <ATen/CPUGeneratorImpl.h>

#include "runtime/denoising/noise.h"

namespace tessera::runtime {
namespace {

class TesseraNoise final : public NoiseSource {
 public:
  explicit TesseraNoise(uint64_t seed) : seed_(seed) {}

  at::Tensor Initial(at::IntArrayRef shape, at::ScalarType dtype) override {
    return Draw({.seed = seed_, .purpose = NoisePurpose::kInitialLatents}, shape, dtype);
  }
  at::Tensor ForPicture(int picture, at::IntArrayRef shape, at::ScalarType dtype) override {
    return Draw({.seed = seed_, .purpose = NoisePurpose::kAutoencoderSample, .step = static_cast<uint32_t>(picture)},
                shape, dtype);
  }
  at::Tensor ForStep(int step, at::IntArrayRef shape, at::ScalarType dtype) override {
    return Draw({.seed = seed_, .purpose = NoisePurpose::kSampler, .step = static_cast<uint32_t>(step)}, shape, dtype);
  }

 private:
  static at::Tensor Draw(const NoiseKey& key, at::IntArrayRef shape, at::ScalarType dtype) {
    const at::Tensor values = at::empty(shape, at::kDouble);
    FillNormal(key, 0, {values.mutable_data_ptr<double>(), static_cast<size_t>(values.numel())});
    return values.to(dtype);
  }

  uint64_t seed_;
};

class TorchCpuNoise final : public NoiseSource {
 public:
  TorchCpuNoise(uint64_t seed, at::ScalarType model_dtype)
      : generator_(at::detail::createCPUGenerator(seed)), model_dtype_(model_dtype) {}

  at::Tensor Initial(at::IntArrayRef shape, at::ScalarType dtype) override { return Draw(shape, dtype); }
  at::Tensor ForPicture(int, at::IntArrayRef shape, at::ScalarType dtype) override { return Draw(shape, dtype); }
  at::Tensor ForStep(int, at::IntArrayRef shape, at::ScalarType dtype) override { return Draw(shape, dtype); }

 private:
  at::Tensor Draw(at::IntArrayRef shape, at::ScalarType dtype) {
    return at::randn(shape, generator_, at::TensorOptions(model_dtype_)).to(dtype);
  }

  at::Generator generator_;
  at::ScalarType model_dtype_;
};

}  // namespace

std::unique_ptr<NoiseSource> MakeTesseraNoise(uint64_t seed) { return std::make_unique<TesseraNoise>(seed); }

std::unique_ptr<NoiseSource> MakeTorchCpuNoise(uint64_t seed, at::ScalarType model_dtype) {
  return std::make_unique<TorchCpuNoise>(seed, model_dtype);
}

}  // namespace tessera::runtime
