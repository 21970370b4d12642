// Between the steps of a stream the host only issues work: it never waits for the device, and copies nothing from
// memory that the device cannot read directly, on any layout.
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "control/training/model_training.h"
#include "models/loading/waiting_memory.h"
#include "models/loading/weight_residency.h"
#include "runtime/device/host_memory.h"
#include "runtime/device/mark.h"
#include "tests/support/layout_runs.h"
#include "tests/support/pretend_device.h"
#include "tests/support/steady_waits.h"

namespace tessera::runtime {
namespace {

class DeviceWaitsTest : public testing::TestWithParam<const char*> {};

TEST_P(DeviceWaitsTest, ASteadyStepWaitsForNothing) {
  const LayoutRuns runs(GetParam());
  std::vector<parallel::Layout> layouts =
      runs.Valid({"cfg=2", "ulysses=2", "ring=2", "tensor=2", "pipe=2", "ring=2,ulysses=2", "cfg=2,tensor=2",
                  "pipe=2,patches=3,warmup=1", "cfg=2,pipe=2,ulysses=2,patches=2,warmup=1"});
  layouts.emplace_back();  // one rank
  EXPECT_GE(layouts.size(), 7u);
  for (const parallel::Layout& layout : layouts) {
    EXPECT_EQ(SteadyWaits(runs, layout), HostWaits{}) << parallel::LayoutText(layout);
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DeviceWaitsTest,
                         testing::Values("dit", "flux_dev", "hunyuan11", "pixart_alpha", "flux2_klein_base",
                                         "qwen_image", "sd3", "sd35", "z_image_base"),
                         [](const auto& info) { return info.param; });

// Tests what the counter counts.
TEST(PretendDeviceTest, CountsWhatAGpuWouldWaitFor) {
  const at::Tensor x = ToDevice(at::arange(6, at::kDouble), kPretendDevice);
  const auto of = [](const std::function<void()>& what) {
    const HostWaits before = PretendDeviceWaits();
    what();
    return PretendDeviceWaits() - before;
  };
  EXPECT_EQ(of([&] { (void)(x * 2 + x).sum(); }), (HostWaits{}));
  EXPECT_EQ(of([&] { (void)ToDevice(at::ones({3}), kPretendDevice); }), (HostWaits{}));
  EXPECT_EQ(of([&] { (void)ToHost(x); }), (HostWaits{}));
  EXPECT_EQ(of([&] { (void)Mark(kPretendDevice).IsReached(); }), (HostWaits{}));
  EXPECT_EQ(of([&] { (void)x.sum().item<double>(); }), (HostWaits{.waits = 1}));
  EXPECT_EQ(of([&] { (void)at::equal(x, x); }), (HostWaits{.waits = 1}));
  EXPECT_EQ(of([&] { Mark(kPretendDevice).Wait(); }), (HostWaits{.waits = 1}));
  EXPECT_EQ(of([&] { (void)x.cpu(); }), (HostWaits{.waits = 1, .pageable_copies = 1}));
  EXPECT_EQ(of([&] { (void)at::ones({3}).to(kPretendDevice); }), (HostWaits{.waits = 1, .pageable_copies = 1}));
  EXPECT_EQ(of([&] { (void)at::ones({3}).to(kPretendDevice, /*non_blocking=*/true); }),
            (HostWaits{.waits = 1, .pageable_copies = 1}));
}

TEST(MarkTest, ReportsTheTimeBetweenTwoPlaces) {
  for (const at::Device device : {at::Device(at::kCPU), kPretendDevice}) {
    const Mark first(device), second(device);
    EXPECT_TRUE(second.IsReached());
    second.Wait();
    EXPECT_GE(second.SecondsSince(first), 0);
    EXPECT_LT(second.SecondsSince(first), 60);
  }
}

TEST(HostMemoryTest, ValuesArriveOnTheDeviceAndBack) {
  const at::Tensor values = at::arange(12, at::kFloat).view({3, 4});
  for (const at::Device device : {at::Device(at::kCPU), kPretendDevice}) {
    const at::Tensor there = ToDevice(values, device);
    EXPECT_EQ(there.device(), device);
    const at::Tensor back = ToHost(there);
    Mark(device).Wait();
    EXPECT_TRUE(back.is_cpu());
    EXPECT_TRUE(at::equal(back, values));
  }
}

}  // namespace
}  // namespace tessera::runtime

// Tests models whose weights wait in the host's memory while they serve, on the pretend device: blocks are brought
// ahead of their use, text encoders and the autoencoder for each use, and results are those of weights that stay, bit
// for bit.
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
  if (blocks() < 3) GTEST_SKIP() << "all blocks stay in two buffers";
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
          if (buffers == 2) {
            EXPECT_GT(PretendDeviceCopies().under_way, 0) << block;
          }
        }
        return PretendDeviceCopies().issued - before;
      };
      pass();
      copies.push_back(pass());
      if (buffers == 2) {
        EXPECT_EQ(pass(), copies.back());
      }
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
      if (parked) {
        EXPECT_LT(loaded - before, bytes_of_resident_);
      }
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
