// The training contract: on every layout each parameter's gradient is that of one rank.
//
// In fp64, where the layouts differ by the order of sums alone: 1e-10 of a gradient's largest value is far above what
// that makes (1e-13), and far below what any missing term does.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <ranges>
#include <utility>

#include "runtime/training/optimizer.h"
#include "tests/support/training_runs.h"

namespace tessera::runtime {
namespace {

using parallel::MeshShape;

std::string NameOf(const MeshShape& shape) {
  std::string name;
  for (const parallel::Axis axis : parallel::kAllAxes) {
    if (shape[axis] > 1) name += std::string(parallel::AxisName(axis)) + "=" + std::to_string(shape[axis]) + " ";
  }
  return name;
}

class GradientLayoutsTest : public testing::TestWithParam<const char*> {
 protected:
  TrainingRuns runs_{GetParam()};
};

TEST_P(GradientLayoutsTest, EveryLayoutHasTheGradientsOfOneRank) {
  const TrainingRuns::Result serial = runs_.Run({}, {}).front();
  ASSERT_GT(serial.norm, 0);
  const MeshShape shapes[] = {{.data = 2},
                              {.tensor = 2},
                              {.tensor = 4},
                              {.ulysses = 2},
                              {.ulysses = 4},
                              {.ring = 2},
                              {.ring = 3},
                              {.data = 2, .tensor = 2},
                              {.data = 2, .tensor = 4},
                              {.data = 2, .ulysses = 2},
                              {.data = 2, .ulysses = 4},
                              {.data = 2, .ring = 2},
                              {.data = 2, .ring = 3},
                              {.ulysses = 2, .tensor = 2},
                              {.ring = 2, .tensor = 2},
                              {.ring = 2, .tensor = 4},
                              {.ring = 3, .tensor = 2},
                              {.ring = 2, .ulysses = 2},
                              {.ring = 2, .ulysses = 4},
                              {.ring = 3, .ulysses = 2},
                              {.data = 2, .ulysses = 2, .tensor = 2}};
  bool recompute = false;
  for (const MeshShape& shape : shapes) {
    const auto& description = runs_.description();
    if (description.heads % (shape.ulysses * shape.tensor) != 0) continue;
    const std::vector<TrainingRuns::Result> results = runs_.Run(shape, {.recompute = recompute});
    EXPECT_LE(runs_.WorstError(shape, results, serial), 1e-10) << NameOf(shape) << (recompute ? "recomputing" : "");
    recompute = !recompute;
  }
}

TEST_P(GradientLayoutsTest, EveryLayoutHasTheGradientsOfOneRanksAdapter) {
  const TrainingRuns::Result serial = runs_.Run({}, {.adapter = true}).front();
  ASSERT_GT(serial.norm, 0);
  const MeshShape shapes[] = {{.tensor = 2},
                              {.tensor = 4},
                              {.ulysses = 2},
                              {.ring = 2},
                              {.data = 2, .tensor = 2},
                              {.ring = 2, .tensor = 2},
                              {.ulysses = 2, .tensor = 2},
                              {.ring = 3, .ulysses = 2}};
  bool recompute = true;
  for (const MeshShape& shape : shapes) {
    const std::vector<TrainingRuns::Result> results = runs_.Run(shape, {.recompute = recompute, .adapter = true});
    EXPECT_LE(runs_.WorstError(shape, results, serial, /*adapter=*/true), 1e-10) << NameOf(shape);
    recompute = !recompute;
  }
}

// An adapter beside matrices that are held in eight bits: the gradients of the same numbers in double precision, on
// every layout, and of other ones than those of the matrices as they are.
TEST_P(GradientLayoutsTest, MatricesInEightBitsHaveTheGradientsOfWhatTheyStandFor) {
  using Matrices = TrainingRuns::Matrices;
  const TrainingRuns::Result dense = runs_.Run({}, {.adapter = true, .matrices = Matrices::kDequantised}).front();
  const TrainingRuns::Result plain = runs_.Run({}, {.adapter = true}).front();
  EXPECT_GE(runs_.WorstError({}, {plain}, dense, /*adapter=*/true), 1e-4);
  EXPECT_LE(runs_.WorstError({}, runs_.Run({}, {.adapter = true, .matrices = Matrices::kEightBits}), dense, true),
            1e-12);
  bool recompute = false;
  for (const MeshShape& shape : {MeshShape{.tensor = 2}, {.ulysses = 2}, {.data = 2, .tensor = 2}, {.pipe = 2}}) {
    if (runs_.description().heads % (shape.ulysses * shape.tensor) != 0) continue;
    const std::vector<TrainingRuns::Result> results = runs_.Run(
        shape,
        {.recompute = recompute, .sequence_parallel = recompute, .adapter = true, .matrices = Matrices::kEightBits});
    EXPECT_LE(runs_.WorstError(shape, results, dense, /*adapter=*/true), 1e-10) << NameOf(shape);
    recompute = !recompute;
  }
}

TEST_P(GradientLayoutsTest, MatricesInEightBitsTakeAnEighthOfTheirBytes) {
  const auto bytes = [&](TrainingRuns::Matrices matrices) {
    int64_t matrix = 0, other = 0, scales = 0;
    const std::unique_ptr<models::Family> family = runs_.Load({}, matrices);
    for (const models::Param& param : family->parameters()) {
      const bool product = param.spec.shape.size() == 2 && param.spec.name.ends_with(".weight");
      (product ? matrix : other) += static_cast<int64_t>(param.Value().nbytes());
      if (param.scales.defined()) scales += static_cast<int64_t>(param.View(param.scales).nbytes());
    }
    return std::array{matrix, other, scales};
  };
  const auto plain = bytes(TrainingRuns::Matrices::kPlain), held = bytes(TrainingRuns::Matrices::kEightBits);
  EXPECT_EQ(plain[2], 0);
  EXPECT_GT(held[2], 0);
  EXPECT_EQ(held[1], plain[1]);
  EXPECT_LE(held[0] * 8, plain[0] + plain[0] / 20);  // but for tables and what is no matrix product
}

// With tokens shared out over the tensor ranks: for weights and adapters, each layout with recomputation for one of
// them.
TEST_P(GradientLayoutsTest, TensorRanksThatShareOutTokensHaveTheGradientsOfOneRank) {
  const MeshShape shapes[] = {{.tensor = 2},
                              {.tensor = 4},
                              {.data = 2, .tensor = 2},
                              {.ulysses = 2, .tensor = 2},
                              {.ring = 2, .tensor = 2},
                              {.ring = 2, .tensor = 4},
                              {.ring = 3, .tensor = 2},
                              {.data = 2, .ulysses = 2, .tensor = 2}};
  for (const bool adapter : {false, true}) {
    const TrainingRuns::Result serial = runs_.Run({}, {.adapter = adapter}).front();
    bool recompute = adapter;
    for (const MeshShape& shape : shapes) {
      if (runs_.description().heads % (shape.ulysses * shape.tensor) != 0) continue;
      const std::vector<TrainingRuns::Result> results =
          runs_.Run(shape, {.recompute = recompute, .sequence_parallel = true, .adapter = adapter});
      EXPECT_LE(runs_.WorstError(shape, results, serial, adapter), 1e-10)
          << NameOf(shape) << (adapter ? "adapter " : "") << (recompute ? "recomputing" : "");
      // Replicas are the outermost axis, and share out the samples.
      const size_t of_replica = TrainingRuns::kSamples / static_cast<size_t>(shape.data);
      for (size_t rank = 0; rank < results.size(); ++rank) {
        const size_t first = rank * static_cast<size_t>(shape.data) / results.size() * of_replica;
        ASSERT_EQ(results[rank].losses.size(), of_replica);
        for (size_t i = 0; i < of_replica; ++i) {
          const double expected = serial.losses[first + i];
          EXPECT_NEAR(results[rank].losses[i], expected, 1e-11 * expected) << NameOf(shape);
        }
      }
      recompute = !recompute;
    }
  }
}

// The weights after a step whose state the replicas share out. `eps` is large, since a step by the sign of a gradient
// that is rounding alone would have no one result.
TEST_P(GradientLayoutsTest, SharedTokensAndASharedOptimizerTakeTheStepOfOneRank) {
  const auto weights_after = [&](const MeshShape& shape, const TrainingRuns::Options& options) {
    std::vector<TrainingRuns::Result> after(static_cast<size_t>(parallel::NumRanks(shape)));
    const std::vector<TrainingRuns::Result> results =
        runs_.Run(shape, options, [&](const TrainingGroups& groups, Gradients& gradients) {
          AdamW(gradients, {.eps = 1e-2}, shape.data > 1 ? &groups.data : nullptr).Step(0.1);
          for (const models::Param& param : gradients.params()) {
            after[static_cast<size_t>(groups.all.rank())].gradients[param.spec.name] = param.Value().detach().clone();
          }
        });
    for (size_t rank = 0; rank < after.size(); ++rank) after[rank].norm = results[rank].norm;
    return after;
  };
  const MeshShape shape{.data = 2, .tensor = 2};
  const TrainingRuns::Result serial = weights_after({}, {}).front();
  EXPECT_LE(runs_.WorstError(shape, weights_after(shape, {.sequence_parallel = true}), serial), 1e-10);
  const MeshShape staged{.data = 2, .pipe = 2};
  EXPECT_LE(runs_.WorstError(staged, weights_after(staged, {.passes = 2}), serial), 1e-10);
}

TEST_P(GradientLayoutsTest, WeightsThatAreSharedOutHaveTheGradientsOfOneRank) {
  const TrainingRuns::Result serial = runs_.Run({}, {}).front();
  const MeshShape shapes[] = {
      {.data = 2},           {.data = 3}, {.data = 2, .tensor = 2}, {.data = 3, .tensor = 2}, {.data = 2, .ulysses = 2},
      {.data = 2, .ring = 2}};
  for (const MeshShape& shape : shapes) {
    for (const bool recompute : {false, true}) {
      const std::vector<TrainingRuns::Result> results =
          runs_.Run(shape, {.recompute = recompute, .sequence_parallel = recompute, .sharded = true});
      EXPECT_LE(runs_.WorstError(shape, results, serial), 1e-10)
          << NameOf(shape) << (recompute ? "recomputing, tokens shared out" : "");
    }
  }
}

TEST_P(GradientLayoutsTest, AnAdapterBesideWeightsThatAreSharedOutHasTheGradientsOfOneRank) {
  const TrainingRuns::Result serial = runs_.Run({}, {.adapter = true}).front();
  const MeshShape shapes[] = {{.data = 2}, {.data = 3}, {.data = 2, .tensor = 2}, {.data = 2, .ring = 2}};
  bool recompute = false;
  for (const MeshShape& shape : shapes) {
    const std::vector<TrainingRuns::Result> results =
        runs_.Run(shape, {.recompute = recompute, .adapter = true, .sharded = true});
    EXPECT_LE(runs_.WorstError(shape, results, serial, /*adapter=*/true), 1e-10) << NameOf(shape);
    recompute = !recompute;
  }
}

TEST_P(GradientLayoutsTest, WeightsThatAreSharedOutTakeTheStepsOfOneRank) {
  for (const bool adapter : {false, true}) {
    const TrainingRuns::Result serial = runs_.Run({}, {.steps = 3, .adapter = adapter}).front();
    const MeshShape shape{.data = 3};
    const std::vector<TrainingRuns::Result> results =
        runs_.Run(shape, {.steps = 3, .adapter = adapter, .sharded = true});
    EXPECT_LE(runs_.WorstError(shape, results, serial, adapter), 1e-9);
  }
}

// Of all weights beside a rank's own rows: those of the embedders and the head, and of one block.
TEST_P(GradientLayoutsTest, NoRankHoldsTheWeightsOfTwoBlocks) {
  const std::unique_ptr<models::Family> family = runs_.Load({});
  std::map<int64_t, int64_t> bytes;  // by block
  for (const models::Param& param : family->parameters()) {
    bytes[param.block] += static_cast<int64_t>(param.Value().nbytes());
  }
  const int64_t frame = std::exchange(bytes[models::Param::kNoBlock], 0);
  ASSERT_GE(bytes.size(), 3u);
  const int64_t largest = std::ranges::max(bytes | std::views::values);
  for (const bool adapter : {false, true}) {
    for (const bool recompute : {false, true}) {
      for (const TrainingRuns::Result& result :
           runs_.Run({.data = 2}, {.recompute = recompute, .adapter = adapter, .sharded = true})) {
        EXPECT_EQ(result.most_bytes, frame + largest);
        EXPECT_LT(result.most_bytes, result.weight_bytes);
      }
    }
  }
}

// Blocks in stages, for weights and adapters: as many micro-batches as a replica has samples and fewer, with
// recomputation and with sends that wait for their receivers for some of them.
TEST_P(GradientLayoutsTest, StagesOfBlocksHaveTheGradientsOfOneRank) {
  struct Case {
    MeshShape shape;
    int passes = 1;
    bool recompute = false, rendezvous = false, sequence_parallel = false;
  };
  const Case cases[] = {{{.pipe = 2}, 1},
                        {{.pipe = 2}, 4, true, true},
                        {{.pipe = 3}, 2, false, true},
                        {{.pipe = 4}, 4, true},
                        {{.data = 2, .pipe = 2}, 2, false, true},
                        {{.pipe = 2, .tensor = 2}, 2, true, true},
                        {{.pipe = 2, .tensor = 2}, 4, false, false, true},
                        {{.pipe = 2, .ulysses = 2}, 4, true},
                        {{.pipe = 2, .ring = 2}, 2, false, true},
                        {{.pipe = 4, .ulysses = 2}, 4, false, true},
                        {{.data = 2, .pipe = 2, .tensor = 2}, 2, true, false, true}};
  for (const bool adapter : {false, true}) {
    const TrainingRuns::Result serial = runs_.Run({}, {.adapter = adapter}).front();
    for (const auto& [shape, passes, recompute, rendezvous, sequence_parallel] : cases) {
      if (shape.pipe > static_cast<int>(runs_.description().block_flops.size())) continue;
      SCOPED_TRACE(NameOf(shape) + (adapter ? "adapter" : ""));
      const std::vector<TrainingRuns::Result> results = runs_.Run(shape, {.recompute = recompute,
                                                                          .sequence_parallel = sequence_parallel,
                                                                          .passes = passes,
                                                                          .adapter = adapter,
                                                                          .rendezvous = rendezvous});
      EXPECT_LE(runs_.WorstError(shape, results, serial, adapter), 1e-10);
      const size_t of_replica = TrainingRuns::kSamples / static_cast<size_t>(shape.data);
      for (size_t rank = 0; rank < results.size(); ++rank) {
        const size_t first = rank * static_cast<size_t>(shape.data) / results.size() * of_replica;
        ASSERT_EQ(results[rank].losses.size(), of_replica);
        for (size_t i = 0; i < of_replica; ++i) {
          EXPECT_NEAR(results[rank].losses[i], serial.losses[first + i], 1e-11 * serial.losses[first + i]);
        }
      }
    }
  }
}

// Every stage moves what is in no block by the same gradient, and its own blocks.
TEST_P(GradientLayoutsTest, StagesTakeTheStepsOfOneRank) {
  for (const bool adapter : {false, true}) {
    const TrainingRuns::Result serial = runs_.Run({}, {.steps = 3, .adapter = adapter}).front();
    const MeshShape shape{.pipe = 2};
    EXPECT_LE(runs_.WorstError(shape, runs_.Run(shape, {.steps = 3, .passes = 2, .adapter = adapter}), serial, adapter),
              1e-9);
  }
}

TEST_P(GradientLayoutsTest, RecomputationChangesNoGradient) {
  const TrainingRuns::Result serial = runs_.Run({}, {}).front();
  EXPECT_LE(runs_.WorstError({}, runs_.Run({}, {.recompute = true}), serial), 1e-12);
  const MeshShape shape{.ring = 2, .ulysses = 2};
  EXPECT_LE(runs_.WorstError(shape, runs_.Run(shape, {.recompute = true}), serial), 1e-10);
}

// The losses of all samples are those of the one rank that saw them all, whoever of a replica is asked.
TEST_P(GradientLayoutsTest, MicroBatchesAndReplicasAddUpToOneBatch) {
  const TrainingRuns::Result serial = runs_.Run({}, {}).front();
  EXPECT_LE(runs_.WorstError({}, runs_.Run({}, {.passes = 4}), serial), 1e-10);
  const MeshShape shape{.data = 2, .ulysses = 2};
  const std::vector<TrainingRuns::Result> results = runs_.Run(shape, {.passes = 2});
  EXPECT_LE(runs_.WorstError(shape, results, serial), 1e-10);
  EXPECT_LE(runs_.WorstError(shape, runs_.Run(shape, {.passes = 2, .sharded = true}), serial), 1e-10);
  for (size_t rank = 0; rank < 4; ++rank) {
    ASSERT_EQ(results[rank].losses.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_NEAR(results[rank].losses[i], serial.losses[rank / 2 * 2 + i], 1e-11 * serial.losses[rank / 2 * 2 + i]);
    }
  }
}

TEST_P(GradientLayoutsTest, ClippingScalesByTheNormOfTheWholeModel) {
  const TrainingRuns::Result whole = runs_.Run({}, {}).front();
  const double limit = whole.norm / 3;
  const TrainingRuns::Result clipped = runs_.Run({}, {.max_norm = limit}).front();
  for (const auto& [name, gradient] : whole.gradients) {
    const at::Tensor expected = gradient * (limit / (whole.norm + 1e-6));
    EXPECT_LE((clipped.gradients.at(name) - expected).abs().max().item<double>(), 1e-15 * whole.norm) << name;
  }
  const MeshShape shape{.data = 2, .tensor = 2};
  EXPECT_LE(runs_.WorstError(shape, runs_.Run(shape, {.max_norm = limit}), clipped), 1e-10);
  EXPECT_LE(runs_.WorstError(shape, runs_.Run(shape, {.max_norm = limit, .sharded = true}), clipped), 1e-10);
  const MeshShape staged{.pipe = 2, .tensor = 2};
  EXPECT_LE(runs_.WorstError(staged, runs_.Run(staged, {.max_norm = limit}), clipped), 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Families, GradientLayoutsTest, testing::Values("flux_dev", "pixart_sigma"),
                         [](const auto& info) { return info.param; });
// run-tests.sh --long; the ordinary run has a family of each kind of text.
INSTANTIATE_TEST_SUITE_P(DISABLED_Long, GradientLayoutsTest,
                         testing::Values("dit", "hunyuan11", "hunyuan12", "pixart_alpha", "sd3", "sd35"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace tessera::runtime
