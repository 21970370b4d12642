// Decoding and encoding with the image's rows spread over ranks give the image and the posterior of a single rank,
// which the golden cases compare with the reference.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "tests/support/opened_autoencoder.h"
#include "tests/support/tensor_bytes.h"

namespace tessera::models {
namespace {

// Latent sizes: an even one, one that no number of ranks divides, and one with fewer rows than ranks.
constexpr std::pair<int64_t, int64_t> kSizes[] = {{8, 6}, {11, 7}, {3, 5}};

class RowSplitTest : public testing::TestWithParam<const char*> {};

TEST_P(RowSplitTest, AnyNumberOfRanksMakesTheImageOfOne) {
  const OpenedAutoencoder opened(GetParam(), at::kDouble);
  for (const auto& [height, width] : kSizes) {
    const at::Tensor latents = opened.Latents(height, width), serial = opened.DecodeSerially(latents);
    for (int ranks = 2; ranks <= 8; ++ranks) {
      EXPECT_LE(RelativeError(opened.DecodeOn(ranks, latents), serial), 1e-12)
          << height << " x " << width << " on " << ranks;
    }
  }
}

TEST_P(RowSplitTest, BandsOfOneRowWithinARankChangeNothing) {
  const OpenedAutoencoder opened(GetParam(), at::kDouble);
  const at::Tensor latents = opened.Latents(5, 4), serial = opened.DecodeSerially(latents);
  EXPECT_LE(RelativeError(opened.DecodeOn(3, latents, /*band_bytes=*/1), serial), 1e-12);
}

TEST_P(RowSplitTest, SinglePrecisionStaysWithinItsRounding) {
  const OpenedAutoencoder opened(GetParam(), at::kFloat);
  const at::Tensor latents = opened.Latents(11, 7), serial = opened.DecodeSerially(latents);
  for (const int ranks : {2, 5, 8}) {
    EXPECT_LE(RelativeError(opened.DecodeOn(ranks, latents), serial), 1e-5) << ranks;
  }
}

TEST_P(RowSplitTest, AnyNumberOfRanksEncodesThePosteriorOfOneOnEveryRank) {
  const OpenedAutoencoder opened(GetParam(), at::kDouble);
  for (const auto& [height, width] : kSizes) {
    const at::Tensor image = opened.Image(height, width), serial = opened.EncodeSerially(image);
    for (int ranks = 2; ranks <= 8; ++ranks) {
      for (const at::Tensor& encoded : opened.EncodeOn(ranks, image).unbind()) {
        EXPECT_LE(RelativeError(encoded, serial), 1e-12) << height << " x " << width << " on " << ranks;
      }
    }
  }
}

TEST_P(RowSplitTest, BandsOfOneRowWithinARankEncodeTheSame) {
  const OpenedAutoencoder opened(GetParam(), at::kDouble);
  const at::Tensor image = opened.Image(5, 4), serial = opened.EncodeSerially(image);
  for (const at::Tensor& encoded : opened.EncodeOn(3, image, /*band_bytes=*/1).unbind()) {
    EXPECT_LE(RelativeError(encoded, serial), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(Autoencoders, RowSplitTest,
                         testing::Values("published_shape", "flux2", "qwen_image", "flux_dev", "pixart_alpha", "sd3"),
                         [](const auto& info) { return info.param; });

// Returns the most bytes of tensors that each rank holds while all of them run `body`.
template <class Body>
std::vector<int64_t> PeaksOn(int ranks, const Body& body) {
  std::vector<int64_t> peaks(static_cast<size_t>(ranks));
  RunRanks(ranks, [&](ThreadRank& rank) {
    const TensorBytes bytes;
    body(rank.world());
    peaks[static_cast<size_t>(rank.rank())] = bytes.peak();
  });
  return peaks;
}

template <class Body>
void ExpectPeaksShrink(const Body& body) {
  const double serial = static_cast<double>(PeaksOn(1, body)[0]);
  ASSERT_GT(serial, 1e6);
  for (const int ranks : {2, 4, 8}) {
    for (const int64_t peak : PeaksOn(ranks, body)) EXPECT_LT(peak, serial * (1.0 / ranks + 0.15)) << ranks;
  }
}

class RowSplitMemoryTest : public testing::TestWithParam<const char*> {};

TEST_P(RowSplitMemoryTest, ADecodingRanksPeakShrinksWithTheNumberOfRanks) {
  const OpenedAutoencoder opened(GetParam(), at::kFloat);
  const at::Tensor latents = opened.Latents(32, 16);
  ExpectPeaksShrink([&](parallel::Communicator& world) { opened.Decode(latents, world); });
}

TEST_P(RowSplitMemoryTest, AnEncodingRanksPeakShrinksWithTheNumberOfRanks) {
  const OpenedAutoencoder opened(GetParam(), at::kFloat);
  const at::Tensor image = opened.Image(32, 16);
  ExpectPeaksShrink([&](parallel::Communicator& world) { opened.Encode(image, world); });
}

INSTANTIATE_TEST_SUITE_P(Autoencoders, RowSplitMemoryTest, testing::Values("published_shape", "flux2", "qwen_image"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::models
