// Tests blocks whose weights wait in the host's memory, on the pretend device: training with them equals training
// without them bit for bit, uses less of the device's memory, and makes the host wait no more.
#include "models/loading/swapped_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>
#include <memory>
#include <ranges>
#include <string>
#include <vector>

#include "control/model/model_description.h"
#include "control/training/model_training.h"
#include "models/families/family_description.h"
#include "tests/support/pretend_device.h"
#include "tests/support/training_runs.h"

namespace tessera::runtime {
namespace {

using Matrices = TrainingRuns::Matrices;

class SwappedWeightsTest : public testing::TestWithParam<const char*> {
 protected:
  ~SwappedWeightsTest() override { LimitPretendDevice(std::numeric_limits<int64_t>::max()); }

  int64_t blocks() const { return runs_.description().blocks; }

  TrainingRuns::Options Options(int64_t swapped) const {
    return {
        .steps = 2, .adapter = true, .device = kPretendDevice, .waiting = control::SwappedBlocks(blocks(), swapped)};
  }

  // Returns the bytes of the weights on the device, by block.
  std::map<int64_t, int64_t> BytesOfBlocks(Matrices matrices) const {
    std::map<int64_t, int64_t> bytes;
    const std::unique_ptr<models::Family> family = runs_.Load({}, matrices);
    for (const models::Param& param : family->parameters()) {
      bytes[param.block] += static_cast<int64_t>(param.Value().nbytes());
      if (param.scales.defined()) bytes[param.block] += static_cast<int64_t>(param.View(param.scales).nbytes());
    }
    return bytes;
  }

  const TrainingRuns runs_{GetParam()};
};

void ExpectSame(const std::vector<TrainingRuns::Result>& own, const std::vector<TrainingRuns::Result>& expected) {
  ASSERT_EQ(own.size(), expected.size());
  for (size_t rank = 0; rank < own.size(); ++rank) {
    EXPECT_TRUE(own[rank].swaps);
    EXPECT_FALSE(expected[rank].swaps);
    EXPECT_EQ(own[rank].losses, expected[rank].losses);
    EXPECT_EQ(own[rank].norm, expected[rank].norm);
    ASSERT_FALSE(own[rank].gradients.empty());
    for (const auto& [name, gradient] : expected[rank].gradients) {
      EXPECT_TRUE(at::equal(own[rank].gradients.at(name), gradient)) << name;
    }
  }
}

// Compares the second of two steps, with an adapter that the first step has changed.
TEST_P(SwappedWeightsTest, StepsAreThoseOfWeightsThatStayBitForBit) {
  for (const bool recompute : {false, true}) {
    for (const Matrices matrices : {Matrices::kPlain, Matrices::kEightBits}) {
      const auto run = [&](int64_t swapped, const parallel::MeshShape& shape) {
        TrainingRuns::Options options = Options(swapped);
        options.recompute = recompute;
        options.matrices = matrices;
        return runs_.Run(shape, options);
      };
      const parallel::MeshShape one, tensor{.tensor = 2};
      const std::vector<TrainingRuns::Result> alone = run(0, one), of_two = run(0, tensor);
      for (const int64_t swapped : {blocks() / 2, blocks()}) ExpectSame(run(swapped, one), alone);
      ExpectSame(run(blocks(), tensor), of_two);
    }
  }
}

TEST_P(SwappedWeightsTest, SoTheyAreOnTheOtherAxes) {
  const parallel::MeshShape shapes[] = {{.ulysses = 2}, {.ring = 2}, {.data = 2}, {.pipe = 2}};
  for (const parallel::MeshShape& shape : shapes) {
    const auto run = [&](int64_t swapped) {
      TrainingRuns::Options options = Options(swapped);
      options.recompute = shape.ring > 1;
      options.passes = shape.pipe;
      return runs_.Run(shape, options);
    };
    ExpectSame(run(blocks() - 1), run(0));
  }
}

TEST_P(SwappedWeightsTest, LoadingTakesTheBlocksThatStayAndTwoBuffers) {
  for (const Matrices matrices : {Matrices::kPlain, Matrices::kEightBits}) {
    const std::vector<int64_t> waiting = control::SwappedBlocks(blocks(), blocks());
    ASSERT_GE(waiting.size(), 3u);
    const int64_t before = PretendDeviceBytes();
    const std::unique_ptr<models::Family> whole = runs_.Load({}, matrices, kPretendDevice);
    const int64_t all = PretendDeviceBytes() - before;
    const std::map<int64_t, int64_t> bytes = BytesOfBlocks(matrices);
    int64_t most = all, largest = 0;
    for (const int64_t block : waiting) {
      most -= bytes.at(block);
      largest = std::max(largest, bytes.at(block));
    }
    constexpr int64_t kAligned = 64 * 512;  // alignment of the storages of a block
    most += 2 * (largest + kAligned);
    ASSERT_LT(most, all);
    const int64_t loaded = PretendDeviceBytes();
    LimitPretendDevice(loaded + most);
    EXPECT_ANY_THROW(runs_.Load({}, matrices, kPretendDevice));
    {
      const std::unique_ptr<models::Family> swapped = runs_.Load({.waiting = waiting}, matrices, kPretendDevice);
      EXPECT_LE(PretendDeviceBytes() - loaded, most);
    }
    EXPECT_EQ(PretendDeviceBytes(), loaded);
    LimitPretendDevice(std::numeric_limits<int64_t>::max());
  }
}

TEST_P(SwappedWeightsTest, AStepMakesTheHostWaitForNothingMore) {
  const auto waits = [&](int64_t swapped, bool recompute) {
    HostWaits before, during;
    TrainingRuns::Options options = Options(swapped);
    options.recompute = recompute;
    options.before_last_step = [&] { before = PretendDeviceWaits(); };
    options.behind_last_step = [&] { during = PretendDeviceWaits() - before; };
    runs_.Run({}, options);
    return during;
  };
  for (const bool recompute : {false, true}) {
    EXPECT_EQ(waits(blocks() - 1, recompute), waits(0, recompute));
    EXPECT_EQ(waits(blocks(), recompute), waits(0, recompute));
  }
}

// Of four blocks the second and the last wait. Both are copied while the first computes, and at the end of the forward
// pass the two buffers hold what the backward pass needs.
TEST_P(SwappedWeightsTest, TheNextBlockIsBroughtAheadAndNoneTwice) {
  ASSERT_EQ(blocks(), 4);
  const std::unique_ptr<models::Family> family = runs_.Load({.waiting = {1, 3}}, Matrices::kPlain, kPretendDevice);
  models::WeightResidency& weights = *family->residency();
  const PretendCopies before = PretendDeviceCopies();
  weights.Bring(0);
  const PretendCopies ahead = PretendDeviceCopies();
  EXPECT_GT(ahead.issued, before.issued);
  EXPECT_EQ(ahead.under_way, ahead.issued - before.issued);
  weights.Release(0);
  weights.Bring(1);  // waits for its copies, not for those of the last block
  const PretendCopies all = PretendDeviceCopies();
  EXPECT_EQ(all.issued, ahead.issued);
  EXPECT_GT(all.under_way, 0);
  EXPECT_LT(all.under_way, ahead.under_way);
  weights.Release(1);
  weights.Bring(2);
  weights.Release(2);
  for (const int block : {3, 3, 2, 1, 0}) {
    weights.Bring(block);
    weights.Release(block);
    EXPECT_EQ(PretendDeviceCopies(), (PretendCopies{.issued = all.issued, .under_way = 0})) << block;
  }
}

INSTANTIATE_TEST_SUITE_P(Families, SwappedWeightsTest, testing::Values("flux_dev"),
                         [](const auto& info) { return info.param; });
// run-tests.sh --long; the model above has no long skips.
INSTANTIATE_TEST_SUITE_P(DISABLED_Long, SwappedWeightsTest, testing::Values("hunyuan11"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
