// Decoding with the rows of the image spread over ranks: the picture is the one that a single rank makes. That one is
// compared with the reference by the golden cases.
#include <gtest/gtest.h>

#include <cmath>

#include "base/planted.h"
#include "models/autoencoder/autoencoder.h"
#include "models/loading/weight_loader.h"
#include "models/weights/model_folder.h"
#include "parallel/host/thread_ranks.h"

namespace tessera {
namespace {

[[maybe_unused]] std::string planted;

at::Tensor Random(at::IntArrayRef shape, uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble);
}

// An autoencoder and its weights. `model`: a folder of tests/golden/pipelines, or empty for the shape of the published
// ones (four levels of two layers) with random weights.
struct Opened {
  Opened(const std::string& model, at::ScalarType dtype) : table(dtype, at::kCPU) {
    if (model.empty()) {
      config = {.latent_channels = 4, .widths = {8, 16, 32, 32}, .layers_per_block = 2, .groups = 8};
      autoencoder = std::make_unique<Autoencoder>(config, table);
      uint64_t seed = 1;
      for (const Param& param : table.params()) {
        const int64_t inputs = param.spec.shape.size() > 1 ? param.Value().numel() / param.spec.shape[0] : 1;
        const at::Tensor value = Random(param.spec.shape, seed++) / std::sqrt(static_cast<double>(inputs));
        param.Value().copy_(param.spec.shape.size() > 1 ? value : 1 + 0.3 * value);
      }
      return;
    }
    const absl::StatusOr<ModelFolder> folder = ModelFolder::Open("tests/golden/pipelines/" + model);
    TORCH_CHECK(folder.ok(), std::string(folder.status().message()));
    absl::StatusOr<ConfigReader> reader = folder->Config("vae");
    TORCH_CHECK(reader.ok(), std::string(reader.status().message()));
    config = *ParseAutoencoderConfig(*reader);
    autoencoder = std::make_unique<Autoencoder>(config, table);
    const absl::Status loaded = LoadWeights(*folder->Weights("vae"), table, "vae");
    TORCH_CHECK(loaded.ok(), std::string(loaded.message()));
  }

  at::Tensor Latents(int64_t height, int64_t width) const {
    return Random({2, config.latent_channels, height, width}, 99).to(table.dtype());
  }

  at::Tensor Decode(const at::Tensor& latents, Communicator& world, int64_t band_bytes = kDefaultBandBytes) const {
    const c10::InferenceMode no_gradients;
    SingleRank one;
    LocalAttention attention;
    return autoencoder->Decode(latents, {.attention = attention, .tensor = one, .world = world}, band_bytes);
  }

  at::Tensor DecodeSerially(const at::Tensor& latents) const {
    SingleRank one;
    return Decode(latents, one);
  }

  // As rank 0 of `ranks` has it.
  at::Tensor DecodeOn(int ranks, const at::Tensor& latents, int64_t band_bytes = kDefaultBandBytes) const {
    at::Tensor image;
    RunRanks(ranks, [&](ThreadRank& rank) {
      const at::Tensor own = Decode(latents, rank.world(), band_bytes);
      if (rank.rank() == 0) image = own;
    });
    return image;
  }

  AutoencoderConfig config;
  ParamTable table;
  std::unique_ptr<Autoencoder> autoencoder;
};

double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  TORCH_CHECK(actual.sizes() == expected.sizes(), actual.sizes(), " and ", expected.sizes());
  return ((actual - expected).abs().max() / expected.abs().max()).item<double>();
}

#ifndef TESSERA_PLANTED_BUGS

// Of latents: even, nothing divides it, fewer rows than ranks.
constexpr std::pair<int64_t, int64_t> kSizes[] = {{8, 6}, {11, 7}, {3, 5}};

class RowSplitTest : public testing::TestWithParam<const char*> {};

TEST_P(RowSplitTest, AnyNumberOfRanksMakesTheImageOfOne) {
  const Opened opened(GetParam(), at::kDouble);
  for (const auto& [height, width] : kSizes) {
    const at::Tensor latents = opened.Latents(height, width), serial = opened.DecodeSerially(latents);
    for (int ranks = 2; ranks <= 8; ++ranks) {
      EXPECT_LE(RelativeError(opened.DecodeOn(ranks, latents), serial), 1e-12)
          << height << " x " << width << " on " << ranks;
    }
  }
}

TEST_P(RowSplitTest, BandsOfOneRowWithinARankChangeNothing) {
  const Opened opened(GetParam(), at::kDouble);
  const at::Tensor latents = opened.Latents(5, 4), serial = opened.DecodeSerially(latents);
  EXPECT_LE(RelativeError(opened.DecodeOn(3, latents, /*band_bytes=*/1), serial), 1e-12);
}

TEST_P(RowSplitTest, SinglePrecisionStaysWithinItsRounding) {
  const Opened opened(GetParam(), at::kFloat);
  const at::Tensor latents = opened.Latents(11, 7), serial = opened.DecodeSerially(latents);
  for (const int ranks : {2, 5, 8}) {
    EXPECT_LE(RelativeError(opened.DecodeOn(ranks, latents), serial), 1e-5) << ranks;
  }
}

INSTANTIATE_TEST_SUITE_P(Autoencoders, RowSplitTest, testing::Values("", "flux_dev", "pixart_alpha", "sd3"),
                         [](const auto& info) { return *info.param ? info.param : "published_shape"; });

TEST(RowSplitMemoryTest, ARanksPeakShrinksWithTheNumberOfRanks) {
  // Bytes that this thread's tensors take at most.
  class Peak final : public c10::MemoryReportingInfoBase {
   public:
    void reportMemoryUsage(void*, int64_t bytes, size_t, size_t, c10::Device) override {
      now_ += bytes;
      peak = std::max(peak, now_);
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t peak = 0;

   private:
    int64_t now_ = 0;
  };
  const Opened opened("", at::kFloat);
  const at::Tensor latents = opened.Latents(32, 16);
  const auto peak_on = [&](int ranks) {
    std::vector<int64_t> peaks(static_cast<size_t>(ranks));
    RunRanks(ranks, [&](ThreadRank& rank) {
      const auto peak = std::make_shared<Peak>();
      const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, peak);
      opened.Decode(latents, rank.world());
      peaks[static_cast<size_t>(rank.rank())] = peak->peak;
    });
    return peaks;
  };
  const double serial = static_cast<double>(peak_on(1)[0]);
  ASSERT_GT(serial, 1e6);
  for (const int ranks : {2, 4, 8}) {
    for (const int64_t peak : peak_on(ranks)) EXPECT_LT(peak, serial * (1.0 / ranks + 0.15)) << ranks;
  }
}

#else

}  // namespace
bool Planted(const char* bug) { return planted == bug; }
namespace {

class PlantedRowSplitTest : public testing::TestWithParam<const char*> {};

TEST_P(PlantedRowSplitTest, IsFarBeyondTheToleranceAndNothingElseIs) {
  const Opened opened("", at::kDouble);
  const at::Tensor latents = opened.Latents(8, 6), serial = opened.DecodeSerially(latents);
  planted = GetParam();
  const double with_bug = RelativeError(opened.DecodeOn(2, latents), serial);
  planted = "";
  EXPECT_GT(with_bug, 1e-6);
  EXPECT_LE(RelativeError(opened.DecodeOn(2, latents), serial), 1e-12);
}

INSTANTIATE_TEST_SUITE_P(Bugs, PlantedRowSplitTest, testing::Values("group_norm_local_rows", "halo_omitted"),
                         [](const auto& info) { return info.param; });

#endif

}  // namespace
}  // namespace tessera
