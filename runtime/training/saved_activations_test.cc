// What waits for its gradient between the two halves of a pass, the memory that sharing out tokens is for; and what
// tensor ranks send each other for it.
#include "tests/support/saved_activations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

#include "tests/support/repeated_block.h"

namespace tessera::runtime {
namespace {

class SavedActivationsTest : public testing::TestWithParam<const char*> {
 protected:
  struct Pass {
    int blocks = 1;
    bool recompute = false;
    int ranks = 1;  // tensor
    bool shares_tokens = true;
    bool frozen =
        true;  // the embedding of tokens alone is trained: every token needs a gradient, and no block's weight
  };
  struct Cost {
    double peak = 0;  // the most bytes that a rank's tensors take, beyond weights and what it is given
    double sent = 0;  // over the tensor axis, by all ranks
  };

  // Of a pass forwards and backwards.
  Cost CostOf(const Pass& pass) const {
    std::vector<Cost> costs(static_cast<size_t>(pass.ranks));
    RunRanks(pass.ranks, [&](ThreadRank& thread) {
      const std::unique_ptr<models::Family> model =
          saved_.runs().Load({.tensor = {.rank = thread.rank(), .size = pass.ranks}});
      for (const models::Param& param : model->parameters().subspan(1)) {
        if (pass.frozen) at::Tensor(param.storage).requires_grad_(false);
      }
      const RepeatedFamily family(*model, pass.blocks);
      const TrainingBatch batch = Batch(*model);
      parallel::SingleRank one;
      const parallel::RankGroups groups{.cfg = one,
                                        .pipe = one,
                                        .sequence = one,
                                        .ring = one,
                                        .ulysses = one,
                                        .tensor = thread.world(),
                                        .world = thread.world(),
                                        .control = one,
                                        .rows = one};
      TrainingPass training(family, groups, {.recompute = pass.recompute, .sequence_parallel = pass.shares_tokens});
      Cost& cost = costs[static_cast<size_t>(thread.rank())];
      thread.world().ResetCounts();
      const TensorBytes bytes;
      training.Run(batch, 1);
      cost.peak = static_cast<double>(bytes.peak());
      for (int kind = 0; kind < parallel::kCollectives; ++kind) {
        cost.sent += static_cast<double>(thread.world().count(static_cast<parallel::Collective>(kind)).bytes);
      }
    });
    Cost all;
    for (const Cost& cost : costs) all = {.peak = std::max(all.peak, cost.peak), .sent = all.sent + cost.sent};
    return all;
  }
  double PeakBytes(const Pass& pass) const { return CostOf(pass).peak; }

  // The most bytes that the tensors of each of so many stages take, of a block each, while micro-batches go through.
  std::vector<double> PeakBytesOfStages(int stages, int micro_batches) const {
    std::vector<double> peaks(static_cast<size_t>(stages));
    std::vector<int> bounds(static_cast<size_t>(stages) + 1);
    std::iota(bounds.begin(), bounds.end(), 0);
    RunRanks(stages, [&](ThreadRank& thread) {
      const std::unique_ptr<models::Family> model = saved_.runs().Load({});
      for (const models::Param& param : model->parameters().subspan(1)) at::Tensor(param.storage).requires_grad_(false);
      const RepeatedFamily family(*model, stages);
      const std::vector<TrainingBatch> batches(static_cast<size_t>(micro_batches), Batch(*model));
      parallel::SingleRank one;
      const parallel::RankGroups groups{.cfg = one,
                                        .pipe = thread.world(),
                                        .sequence = one,
                                        .ring = one,
                                        .ulysses = one,
                                        .tensor = one,
                                        .world = thread.world(),
                                        .control = one,
                                        .rows = one};
      TrainingPass training(family, groups, {.stage_bounds = bounds});
      const TensorBytes bytes;
      training.Run(batches, 1);
      peaks[static_cast<size_t>(thread.rank())] = static_cast<double>(bytes.peak());
    });
    return peaks;
  }

  // What another block between the first and the last one adds to `Cost::sent`.
  double SentForABlock(Pass pass) const {
    pass.blocks = 3;
    const double three = CostOf(pass).sent;
    pass.blocks = 2;
    return three - CostOf(pass).sent;
  }

  // Tokens and features of what a block is given.
  struct Sizes {
    double image = 0, text = 0, width = 0;
    bool joint = false;
  };
  Sizes SizesOfABlock() const {
    const std::unique_ptr<models::Family> model = saved_.runs().Load({});
    const TrainingBatch batch = Batch(*model);
    const models::Transformer& transformer = model->transformer();
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const at::Tensor patches = model->ToPatches(batch.sample.noisy);
    const at::Tensor positions = transformer.Place({.height = 16, .width = 17}, at::kCPU).embedded;
    const at::Tensor image =
        transformer.Embed(patches, positions, {.attention = attention, .tensor = one, .world = one});
    return {.image = static_cast<double>(image.size(1)),
            .text = static_cast<double>(batch.rows[0].text.size(0)),
            .width = static_cast<double>(image.size(2)),
            .joint = transformer.joint_text()};
  }

  SavedActivations saved_{GetParam()};

 private:
  TrainingBatch Batch(models::Family& family) const {
    const int64_t side = saved_.runs().description().size_multiple;
    const models::LatentGeometry geometry = family.Geometry(16 * side, 17 * side);
    TrainingBatch batch = saved_.runs().Batch(family, 1, 1);
    batch.sample.noisy = Random({1, geometry.channels, geometry.height, geometry.width}, 1);
    batch.sample.target = Random({1, geometry.channels, geometry.height, geometry.width}, 2);
    return batch;
  }
};

// In fp64 and in the operators of the reference, which keep scores and more copies than a fused kernel, but of the same
// tokens. A hundredth for what does not depend on tokens.
TEST_P(SavedActivationsTest, TensorRanksThatShareOutTokensKeepTheirShareOfABlock) {
  for (const bool frozen : {false, true}) {
    const double serial = saved_.Bytes({.frozen = frozen});
    ASSERT_GT(serial, 1e6);
    for (const int ranks : {2, 4}) {
      const double all_reduce = saved_.Bytes({.ranks = ranks, .frozen = frozen}),
                   shared = saved_.Bytes({.ranks = ranks, .shares_tokens = true, .frozen = frozen});
      std::printf("%s, tensor %d%s: %.3f of one rank's bytes, %.3f without shared tokens\n", GetParam(), ranks,
                  frozen ? ", frozen" : "", shared / serial, all_reduce / serial);
      EXPECT_LE(shared, serial * (1.0 / ranks + 0.01)) << ranks << (frozen ? " frozen" : "");
    }
  }
}

// A pass over one block keeps that block's activations, and works in the same memory besides. Another block adds what
// enters it, and nothing else. Beside a block that is computed again stand its result, the gradient of that and the
// gradient of its input.
TEST_P(SavedActivationsTest, RecomputationKeepsOneBlocksActivationsAndTheInputsOfAll) {
  for (const int ranks : {1, 2}) {
    const Sizes sizes = SizesOfABlock();
    const double inputs = (sizes.image + (sizes.joint ? sizes.text : 0)) * sizes.width * 8 / ranks,
                 one = PeakBytes({.ranks = ranks});
    const double two = PeakBytes({.blocks = 2, .recompute = true, .ranks = ranks}),
                 eight = PeakBytes({.blocks = 8, .recompute = true, .ranks = ranks});
    std::printf("%s, tensor %d: %.2f inputs of a block more for each, %.2f without; one block %.1f, eight %.1f\n",
                GetParam(), ranks, (eight - two) / 6 / inputs,
                (PeakBytes({.blocks = 8, .ranks = ranks}) - PeakBytes({.blocks = 2, .ranks = ranks})) / 6 / inputs,
                one / inputs, eight / inputs);
    EXPECT_LE((eight - two) / 6, inputs * 1.02) << ranks;
    EXPECT_LE(eight, one + (8 + 3) * inputs) << ranks;
  }
}

// A stage keeps the activations of one micro-batch for each stage from it on, however many follow. What a micro-batch
// adds is what one block keeps, which the last stage has for one of them alone.
TEST_P(SavedActivationsTest, StagesKeepNoMoreMicroBatchesThanThereAreStagesFromThemOn) {
  constexpr int kStages = 3;
  const std::vector<double> of_one = PeakBytesOfStages(kStages, 1), of_three = PeakBytesOfStages(kStages, kStages),
                            of_nine = PeakBytesOfStages(kStages, 9);
  const double block = saved_.Bytes({.frozen = true});
  for (size_t stage = 0; stage < kStages; ++stage) {
    const double more = (of_three[stage] - of_one[stage]) / block;
    std::printf("%s, stage %zu of %d: %.2f blocks' activations more for three micro-batches, %.2f for nine\n",
                GetParam(), stage, kStages, more, (of_nine[stage] - of_one[stage]) / block);
    EXPECT_NEAR(more, static_cast<double>(kStages - 1 - stage), 0.3);
    EXPECT_LE(of_nine[stage], of_three[stage] + 0.05 * block);
  }
}

// docs/parallelism.md. A token that goes through a column product and the row product behind it is sent four times its
// features by all-reduce in both directions, over two ranks; as often where tokens are shared out, and once more where
// a weight has a gradient. Beside that PixArt's text goes into a column product as it is, so that its gradient is
// summed, and the gradient of the modulation is.
TEST_P(SavedActivationsTest, SharedTokensSendWhatSumsSendAndTokensOnceMoreForWeights) {
  const Sizes sizes = SizesOfABlock();
  const double pairs = sizes.joint ? 2 * (sizes.image + sizes.text) : 3 * sizes.image;
  const double text = sizes.joint ? 0 : 2 * sizes.text, modulation = 2.0 * (sizes.joint ? 12 : 6);
  const double e = 8 * sizes.width;
  EXPECT_EQ(SentForABlock({.ranks = 2, .shares_tokens = false}), e * 4 * pairs);
  EXPECT_EQ(SentForABlock({.ranks = 2}), e * 4 * pairs);
  EXPECT_EQ(SentForABlock({.ranks = 2, .shares_tokens = false, .frozen = false}), e * (4 * pairs + text));
  EXPECT_EQ(SentForABlock({.ranks = 2, .frozen = false}), e * (5 * pairs + text + modulation));
}

INSTANTIATE_TEST_SUITE_P(Families, SavedActivationsTest, testing::Values("flux_dev", "pixart_sigma"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
