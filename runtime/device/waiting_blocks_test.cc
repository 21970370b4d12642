// Tests models whose weights wait in the host's memory while they serve, on the pretend device: blocks are brought
// ahead of their use, text encoders and the autoencoder for each use, and results are those of weights that stay, bit
// for bit.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "control/training/model_training.h"
#include "models/loading/waiting_memory.h"
#include "models/loading/weight_residency.h"
#include "tests/support/layout_runs.h"
#include "tests/support/pretend_device.h"

namespace tessera::runtime {
namespace {

using control::WeightStorage;

class WaitingBlocksTest : public testing::TestWithParam<const char*> {
 protected:
  ~WaitingBlocksTest() override { LimitPretendPinnedMemory(std::numeric_limits<int64_t>::max()); }

  int64_t blocks() const { return runs_.description().blocks; }

  // Lets this many of the model's blocks wait, and the other components if `all`.
  void LetWait(int64_t count, int64_t buffers, bool all, WeightStorage weights = WeightStorage::kStored) {
    const std::vector<int64_t> waiting = control::SwappedBlocks(blocks(), count);
    runs_.ChangeLoading([=](models::LoadOptions& options) {
      options.share.waiting = waiting;
      options.share.block_buffers = buffers;
      options.placement.weights = weights;
      if (count > 0) options.offload = models::Offloaded::kModulations;
      if (all) options.offload = models::Offloaded::kAll;
    });
  }

  std::vector<std::vector<at::Tensor>> Latents(const parallel::Layout& layout, at::ScalarType dtype) const {
    return runs_.Run(layout, dtype, "", kPretendDevice);
  }

  LayoutRuns runs_{GetParam()};
  int64_t bytes_of_resident_ = 0;
};

void ExpectSame(const std::vector<std::vector<at::Tensor>>& own, const std::vector<std::vector<at::Tensor>>& expected,
                const std::string& what) {
  ASSERT_EQ(own.size(), expected.size());
  for (size_t rank = 0; rank < own.size(); ++rank) {
    for (size_t step = 0; step < own[rank].size(); ++step) {
      EXPECT_TRUE(at::equal(own[rank][step], expected[rank][step])) << what << ", rank " << rank << ", step " << step;
    }
  }
}

TEST_P(WaitingBlocksTest, LatentsAreThoseOfWeightsThatStayBitForBit) {
  for (const parallel::Layout& layout : runs_.Valid({"cfg=1", "tensor=2", "pipe=2"})) {
    LetWait(0, 2, false);
    const std::vector<std::vector<at::Tensor>> expected = Latents(layout, at::kDouble);
    LetWait(blocks(), 2, true);
    ExpectSame(Latents(layout, at::kDouble), expected, parallel::LayoutText(layout));
  }
  LetWait(0, 2, false);
  const std::vector<std::vector<at::Tensor>> expected = Latents({}, at::kBFloat16);
  for (const int64_t count : {blocks() / 2, blocks()}) {
    for (const int64_t buffers : {1, 3}) {
      LetWait(count, buffers, false);
      ExpectSame(Latents({}, at::kBFloat16), expected, std::to_string(count));
    }
  }
}

TEST_P(WaitingBlocksTest, SoTheyAreWithQuantizedWeights) {
  for (const WeightStorage weights : {WeightStorage::kInt8, WeightStorage::kFp8}) {
    LetWait(0, 2, false, weights);
    const std::vector<std::vector<at::Tensor>> expected = Latents({}, at::kBFloat16);
    LetWait(blocks(), 2, true, weights);
    ExpectSame(Latents({}, at::kBFloat16), expected, "quantized");
  }
}

TEST_P(WaitingBlocksTest, SoTheyAreWhereMemoryCannotBePinned) {
  LetWait(0, 2, false);
  const std::vector<std::vector<at::Tensor>> expected = Latents({}, at::kBFloat16);
  LetWait(blocks(), 2, true);
  LimitPretendPinnedMemory(int64_t{1} << 20);
  ExpectSame(Latents({}, at::kBFloat16), expected, "pageable");
}

// With two buffers every pass copies each block once, while the block before it computes. With more buffers some blocks
// are still there from the pass before.
TEST_P(WaitingBlocksTest, APassBringsEachBlockAtMostOnceAndAheadOfItsUse) {
  ASSERT_GE(blocks(), 3);
  std::vector<int64_t> copies;  // of a steady pass, by the number of buffers
  for (const int64_t buffers : {int64_t{2}, int64_t{3}, blocks()}) {
    LetWait(blocks(), buffers, false);
    const auto count = [&](const LayoutRuns::Rank& rank) {
      models::WeightResidency& weights = *rank.family.residency();
      EXPECT_FALSE(weights.holds_modulations());
      const auto pass = [&] {
        const int64_t before = PretendDeviceCopies().issued;
        for (int block = 0; block < blocks(); ++block) {
          const models::BroughtPart part(&weights, block);
          if (buffers == 2) EXPECT_GT(PretendDeviceCopies().under_way, 0) << block;
        }
        return PretendDeviceCopies().issued - before;
      };
      pass();
      copies.push_back(pass());
      if (buffers == 2) EXPECT_EQ(pass(), copies.back());
    };
    runs_.OnRanks({}, at::kBFloat16, count, "", kPretendDevice);
  }
  EXPECT_GT(copies[0], 0);
  EXPECT_LE(copies[1], copies[0]);
  EXPECT_EQ(copies[2], 0);
}

// Text encoders and the autoencoder take memory of the device only while they are used.
TEST_P(WaitingBlocksTest, OtherComponentsAreOnTheDeviceOnlyInUse) {
  std::vector<at::Tensor> images;
  for (const bool parked : {false, true}) {
    LetWait(0, 2, parked);
    const int64_t before = PretendDeviceBytes();
    const auto decode = [&](const LayoutRuns::Rank& rank) {
      const int64_t loaded = PretendDeviceBytes();
      const models::LatentGeometry geometry = rank.family.Geometry(64, 64);
      const at::Tensor latents =
          at::sin(at::arange(geometry.channels * geometry.height * geometry.width, at::kFloat) * 0.7)
              .view({1, geometry.channels, geometry.height, geometry.width})
              .to(kPretendDevice);
      parallel::LocalAttention attention;
      parallel::SingleRank one;
      const absl::StatusOr<at::Tensor> image =
          rank.family.Decode(latents, {.attention = attention, .tensor = one, .world = one});
      ASSERT_TRUE(image.ok()) << image.status();
      images.push_back(image->cpu());
      EXPECT_EQ(PretendDeviceBytes() - loaded, static_cast<int64_t>(latents.nbytes() + image->nbytes()));
      if (parked) EXPECT_LT(loaded - before, bytes_of_resident_);
      bytes_of_resident_ = loaded - before;
    };
    runs_.OnRanks({}, at::kBFloat16, decode, "", kPretendDevice);
  }
  ASSERT_EQ(images.size(), 2u);
  EXPECT_TRUE(at::equal(images[0], images[1]));
}

INSTANTIATE_TEST_SUITE_P(Families, WaitingBlocksTest,
                         testing::Values("flux_dev", "z_image_base", "flux2_klein_base", "qwen_image", "sd35",
                                         "pixart_sigma", "hunyuan11"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
