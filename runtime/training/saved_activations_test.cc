// Measures the tensors that are kept for the gradient between the forward and the backward pass, the memory that
// sharing tokens out reduces, and what tensor ranks send each other for it.
#include "tests/support/saved_activations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <numeric>
#include <string>

#include "models/families/family_description.h"
#include "tests/support/repeated_block.h"

namespace tessera::runtime {
namespace {

class SavedActivationsTest : public testing::TestWithParam<const char*> {
 protected:
  struct Pass {
    int blocks = 1;
    bool recompute = false;
    int ranks = 1;  // tensor ranks
    bool shares_tokens = true;
    bool frozen =
        true;  // trains only the embedding of tokens: every token needs a gradient, and no weight of a block does
  };
  struct Cost {
    double peak = 0;  // maximum bytes of a rank's tensors, excluding weights and inputs
    double sent = 0;  // over the tensor axis, by all ranks
  };

  // Returns the cost of a forward and a backward pass.
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
      const auto sent = [&thread] {
        double bytes = 0;
        for (int kind = 0; kind < parallel::kCollectives; ++kind) {
          bytes += static_cast<double>(thread.world().count(static_cast<parallel::Collective>(kind)).bytes);
        }
        return bytes;
      };
      const double sent_before = sent();
      const TensorBytes bytes;
      training.Run(batch, 1);
      cost.peak = static_cast<double>(bytes.peak());
      cost.sent = sent() - sent_before;
    });
    Cost all;
    for (const Cost& cost : costs) all = {.peak = std::max(all.peak, cost.peak), .sent = all.sent + cost.sent};
    return all;
  }
  double PeakBytes(const Pass& pass) const { return CostOf(pass).peak; }

  // Returns the maximum bytes of the tensors of each stage, with one block per stage, while micro-batches pass through.
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

  // Returns how much another block between the first and the last one adds to `Cost::sent`.
  double SentForABlock(Pass pass) const {
    pass.blocks = 3;
    const double three = CostOf(pass).sent;
    pass.blocks = 2;
    return three - CostOf(pass).sent;
  }

  // Number of tokens and features of a block's input.
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
    const at::Tensor positions = transformer.Place({.height = 16, .width = 17}, /*text=*/0, at::kCPU).embedded;
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

// In fp64 and with the operators of the reference, which keep scores and more copies than a fused kernel, but of the
// same tokens. The tolerance of a hundredth is for what does not depend on tokens.
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

// A pass over one block keeps that block's activations and uses more memory only temporarily. Each further block adds
// only its inputs. While a block is computed again, its result, the gradient of that and the gradient of its input
// exist in addition.
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

// A stage keeps the activations of one micro-batch for each stage from it to the last, however many micro-batches
// follow. A micro-batch adds what one block keeps; the last stage has this for only one micro-batch at a time.
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

// Checks the figures of docs/parallelism.md. For a token that passes through a column product and the following row
// product, all-reduce sends four times its features, both passes together, over two ranks. If tokens are shared out it
// is as many, and once more if a weight has a gradient. In addition, PixArt's text is the input of a column product as
// a whole, so its gradient is summed, and so is the gradient of the modulation.
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
