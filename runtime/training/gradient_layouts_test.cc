// Tests the training contract: on every layout each parameter's gradient is that of one rank.
//
// In fp64, where the layouts differ only in the order of sums: 1e-10 of a gradient's largest value is far above the
// resulting difference (1e-13), and far below that of any missing term.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <ranges>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "models/families/family_description.h"
#include "models/transformer.h"
#include "runtime/training/initial_weights.h"
#include "runtime/training/optimizer.h"
#include "tests/support/narrow_heads_folder.h"
#include "tests/support/training_runs.h"

namespace tessera::runtime {
namespace {

using parallel::MeshShape;

// A mesh of ranks and the options of their training.
struct Layout {
  MeshShape shape;
  TrainingRuns::Options options;
  bool shares_state = false;  // the replicas share the optimizer's state out
};

std::string NameOf(const MeshShape& shape) {
  std::string name;
  for (const parallel::Axis axis : parallel::kAllAxes) {
    if (shape[axis] > 1) name += std::string(parallel::AxisName(axis)) + "=" + std::to_string(shape[axis]) + " ";
  }
  return name;
}

std::string NameOf(const Layout& layout) {
  std::string name = NameOf(layout.shape);
  if (layout.options.sequence_parallel) name += "tokens shared out, ";
  if (layout.shares_state) name += "state shared out, ";
  if (layout.options.sharded) name += "weights shared out, ";
  if (layout.options.recompute) name += "recomputing, ";
  return name + (layout.options.adapter ? "adapter" : "all weights");
}

// The options of training, each by itself.
const std::vector<Layout>& Choices() {
  static const std::vector<Layout> choices = {{.shape = {.tensor = 2}},
                                              {.shape = {.tensor = 4}},
                                              {.options = {.sequence_parallel = true}},
                                              {.shape = {.ulysses = 2}},
                                              {.shape = {.ulysses = 4}},
                                              {.shape = {.ring = 2}},
                                              {.shape = {.ring = 3}},
                                              {.shape = {.data = 2}},
                                              {.shares_state = true},
                                              {.options = {.sharded = true}},
                                              {.options = {.recompute = true}},
                                              {.options = {.adapter = true}},
                                              {.shape = {.pipe = 2}, .options = {.passes = 2}}};
  return choices;
}

// Returns both choices combined, on as few ranks as they need; nothing if they exclude each other or need more than
// eight.
std::optional<Layout> Both(const Layout& a, const Layout& b) {
  Layout both;
  for (const parallel::Axis axis : parallel::kAllAxes) {
    if (a.shape[axis] > 1 && b.shape[axis] > 1 && a.shape[axis] != b.shape[axis]) return std::nullopt;
    both.shape[axis] = std::max(a.shape[axis], b.shape[axis]);
  }
  both.options = {.recompute = a.options.recompute || b.options.recompute,
                  .sequence_parallel = a.options.sequence_parallel || b.options.sequence_parallel,
                  .passes = std::max(a.options.passes, b.options.passes),
                  .adapter = a.options.adapter || b.options.adapter,
                  .sharded = a.options.sharded || b.options.sharded};
  both.shares_state = a.shares_state || b.shares_state;
  if (both.shares_state && both.options.sharded) return std::nullopt;
  if (both.options.sequence_parallel) both.shape.tensor = std::max(both.shape.tensor, 2);
  if (both.shares_state || both.options.sharded) both.shape.data = std::max(both.shape.data, 2);
  if (parallel::NumRanks(both.shape) > 8) return std::nullopt;
  return both;
}

// A model and the results of one rank.
class SerialRuns {
 public:
  explicit SerialRuns(const std::string& model) : runs_(model) {}

  const TrainingRuns& runs() const { return runs_; }

  // Checks gradients and losses, and the weights after a step with them.
  void ExpectOf(const Layout& layout) {
    const bool adapter = layout.options.adapter;
    if (!serial_.contains(adapter)) serial_[adapter] = RunOn({.options = {.adapter = adapter}});
    const Step &serial = serial_.at(adapter), own = RunOn(layout);
    const TrainingRuns::Result& expected = serial.results.front();
    ASSERT_GT(expected.norm, 0);
    EXPECT_LE(runs_.WorstError(layout.shape, own.results, expected, adapter), 1e-10);
    EXPECT_LE(runs_.WorstError(layout.shape, own.weights, serial.weights.front(), adapter), 1e-10);
    // Replicas are the outermost axis and share the samples out.
    const auto replicas = static_cast<size_t>(layout.shape.data), ranks = own.results.size();
    for (size_t rank = 0; rank < ranks; ++rank) {
      const size_t replica = rank * replicas / ranks, first = TrainingRuns::kSamples * replica / replicas;
      const std::vector<double>& losses = own.results[rank].losses;
      ASSERT_EQ(losses.size(), TrainingRuns::kSamples * (replica + 1) / replicas - first);
      for (size_t i = 0; i < losses.size(); ++i) {
        EXPECT_NEAR(losses[i], expected.losses[first + i], 1e-11 * expected.losses[first + i]);
      }
    }
  }

 private:
  struct Step {
    std::vector<TrainingRuns::Result> results;
    std::vector<TrainingRuns::Result> weights;  // in place of the gradients
  };

  // `eps` is large, because a step by the sign of a gradient that is only rounding error would have no unique result.
  Step RunOn(const Layout& layout) const {
    Step step{.results = {}, .weights = std::vector<TrainingRuns::Result>(parallel::NumRanks(layout.shape))};
    step.results = runs_.Run(layout.shape, layout.options, [&](const TrainingGroups& groups, Gradients& gradients) {
      AdamW(gradients, {.eps = 1e-2}, layout.shares_state ? &groups.data : nullptr).Step(0.1);
      TrainingRuns::Result& after = step.weights[static_cast<size_t>(groups.all.rank())];
      for (const models::Param& param : gradients.params()) {
        const at::Tensor value =
            gradients.sharded() != nullptr ? gradients.sharded()->OwnRows(param) : param.Value().detach();
        after.gradients[param.spec.name] = value.clone();
      }
    });
    for (size_t rank = 0; rank < step.weights.size(); ++rank) {
      step.weights[rank].norm = step.results[rank].norm;
      step.weights[rank].rows = step.results[rank].rows;
    }
    return step;
  }

  TrainingRuns runs_;
  std::map<bool, Step> serial_;  // by whether the adapter or all weights are trained
};

class GradientLayoutsTest : public testing::TestWithParam<const char*> {
 protected:
  // Whether all replicas take equally many passes, as they must if they share the weights out. A family that neither
  // masks nor pads its texts makes a pass of each sample, and a run's batch is a multiple of the replicas.
  bool TakesEqualPasses(const MeshShape& shape) const {
    return TrainingRuns::kSamples % static_cast<size_t>(shape.data) == 0 || runs_.Load({})->pads_texts();
  }

  void ExpectThatOfOneRank(const Layout& layout) {
    SCOPED_TRACE(NameOf(layout));
    if (layout.options.sharded && !TakesEqualPasses(layout.shape)) return;
    const int shared_heads = layout.shape.ulysses * layout.shape.tensor;
    if (golden_.runs().description().heads % shared_heads == 0) {
      golden_.ExpectOf(layout);
      return;
    }
    if (narrow_ == nullptr) {
      narrow_folder_ = std::make_unique<NarrowHeadsFolder>(GetParam());
      narrow_ = std::make_unique<SerialRuns>(narrow_folder_->path());
    }
    ASSERT_EQ(narrow_->runs().description().heads % shared_heads, 0);
    narrow_->ExpectOf(layout);
  }

  SerialRuns golden_{GetParam()};
  const TrainingRuns& runs_ = golden_.runs();

 private:
  std::unique_ptr<NarrowHeadsFolder> narrow_folder_;
  std::unique_ptr<SerialRuns> narrow_;
};

TEST_P(GradientLayoutsTest, EveryChoiceAndEveryTwoChoicesHaveTheGradientsOfOneRank) {
  std::set<std::string> done;
  for (const Layout& one : Choices()) {
    for (const Layout& other : Choices()) {
      const std::optional<Layout> both = Both(one, other);
      if (both.has_value() && done.insert(NameOf(*both)).second) ExpectThatOfOneRank(*both);
    }
  }
  // 13 choices and 78 pairs of them, of which 4 exclude each other and 3 need more than eight ranks; 3 choices require
  // another one and are counted as a pair with it.
  EXPECT_EQ(done.size(), 13u + 78 - 4 - 3 - 3);
}

TEST_P(GradientLayoutsTest, SoHaveProductsOfMoreChoices) {
  const Layout layouts[] = {
      {.shape = {.data = 2, .ulysses = 2, .tensor = 2}},
      {.shape = {.data = 2, .ulysses = 2, .tensor = 2}, .options = {.recompute = true, .sequence_parallel = true}},
      {.shape = {.ring = 2, .ulysses = 2}, .options = {.recompute = true}},
      {.shape = {.ring = 3, .ulysses = 2}, .options = {.recompute = true, .adapter = true}},
      {.shape = {.ring = 2, .tensor = 4}, .options = {.recompute = true, .sequence_parallel = true}},
      {.shape = {.ring = 3, .tensor = 2}, .options = {.sequence_parallel = true, .adapter = true}},
      {.shape = {.ulysses = 2, .tensor = 2}, .options = {.sequence_parallel = true, .adapter = true}},
      {.shape = {.data = 2, .tensor = 2}, .options = {.sequence_parallel = true}, .shares_state = true},
      {.shape = {.data = 2, .pipe = 2}, .options = {.passes = 2}, .shares_state = true},
      {.shape = {.data = 3}, .options = {.sharded = true}},
      {.shape = {.data = 3}, .options = {.recompute = true, .adapter = true, .sharded = true}},
      {.shape = {.data = 3, .tensor = 2}, .options = {.recompute = true, .sequence_parallel = true, .sharded = true}},
      {.shape = {.data = 2, .ulysses = 2, .tensor = 2}, .options = {.sequence_parallel = true, .sharded = true}},
      {.shape = {.data = 2, .ring = 2, .ulysses = 2}, .options = {.recompute = true, .sharded = true}},
      {.shape = {.data = 2, .tensor = 2}, .options = {.adapter = true, .sharded = true}},
      {.shape = {.data = 2, .ring = 2}, .options = {.recompute = true, .adapter = true, .sharded = true}},
      {.shape = {.data = 2, .ulysses = 2}, .options = {.adapter = true, .sharded = true}},
      {.shape = {.data = 2, .ulysses = 2, .tensor = 2},
       .options = {.recompute = true, .sequence_parallel = true, .adapter = true, .sharded = true}}};
  for (const Layout& layout : layouts) ExpectThatOfOneRank(layout);
}

// With an adapter and matrices in eight bits, the gradients on every layout are those of the dequantised numbers in
// double precision, and differ from those of the original matrices.
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
  EXPECT_LE(held[0] * 8, plain[0] + plain[0] / 20);  // except for tables and other weights that are not matrix products
}

TEST_P(GradientLayoutsTest, WeightsThatAreSharedOutTakeTheStepsOfOneRank) {
  for (const bool adapter : {false, true}) {
    const TrainingRuns::Result serial = runs_.Run({}, {.steps = 3, .adapter = adapter}).front();
    for (const MeshShape& shape : {MeshShape{.data = 3}, {.data = 2, .pipe = 2}}) {
      if (!TakesEqualPasses(shape)) continue;
      const std::vector<TrainingRuns::Result> results =
          runs_.Run(shape, {.steps = 3, .adapter = adapter, .sharded = true});
      EXPECT_LE(runs_.WorstError(shape, results, serial, adapter), 1e-9) << NameOf(shape);
    }
  }
}

// The scales are kept with their rows.
TEST_P(GradientLayoutsTest, MatricesInEightBitsAreSharedOutLikeOthers) {
  constexpr auto kEightBits = TrainingRuns::Matrices::kEightBits;
  const TrainingRuns::Result serial = runs_.Run({}, {.adapter = true, .matrices = kEightBits}).front();
  bool recompute = false;
  for (const MeshShape& shape : {MeshShape{.data = 2}, {.data = 3}, {.data = 2, .tensor = 2}, {.data = 2, .pipe = 2}}) {
    if (!TakesEqualPasses(shape)) continue;
    const std::vector<TrainingRuns::Result> results = runs_.Run(shape, {.recompute = recompute,
                                                                        .sequence_parallel = recompute,
                                                                        .adapter = true,
                                                                        .sharded = true,
                                                                        .matrices = kEightBits});
    EXPECT_LE(runs_.WorstError(shape, results, serial, /*adapter=*/true), 1e-10) << NameOf(shape);
    recompute = !recompute;
  }
}

// In addition to its rows, a rank holds only the weights of the embedders and the head, and of one block.
TEST_P(GradientLayoutsTest, NoRankHoldsTheWeightsOfTwoBlocks) {
  using Matrices = TrainingRuns::Matrices;
  for (const auto& [adapter, matrices] :
       {std::pair{false, Matrices::kPlain}, std::pair{true, Matrices::kPlain}, std::pair{true, Matrices::kEightBits}}) {
    const std::unique_ptr<models::Family> family = runs_.Load({}, matrices);
    std::map<int64_t, int64_t> bytes;  // by block
    for (const models::Param& param : family->parameters()) {
      bytes[param.block] += static_cast<int64_t>(param.Value().nbytes());
      if (param.scales.defined()) bytes[param.block] += static_cast<int64_t>(param.View(param.scales).nbytes());
    }
    const int64_t frame = std::exchange(bytes[models::Param::kNoBlock], 0);
    ASSERT_GE(bytes.size(), 3u);
    const int64_t largest = std::ranges::max(bytes | std::views::values);
    for (const bool recompute : {false, true}) {
      for (const TrainingRuns::Result& result : runs_.Run(
               {.data = 2}, {.recompute = recompute, .adapter = adapter, .sharded = true, .matrices = matrices})) {
        EXPECT_EQ(result.most_bytes, frame + largest);
        EXPECT_LT(result.most_bytes, result.weight_bytes);
      }
    }
  }
}

// Covers one micro-batch and as many as a replica has samples, some cases with recomputation and with sends that wait
// for their receivers.
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
                        {{.pipe = 2, .tensor = 2}, 4, false, true, true},
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

// Every stage updates the parameters outside all blocks with the same gradient, and also updates its blocks.
TEST_P(GradientLayoutsTest, StagesTakeTheStepsOfOneRank) {
  for (const bool adapter : {false, true}) {
    const TrainingRuns::Result serial = runs_.Run({}, {.steps = 3, .adapter = adapter}).front();
    const MeshShape shape{.pipe = 2};
    EXPECT_LE(runs_.WorstError(shape, runs_.Run(shape, {.steps = 3, .passes = 2, .adapter = adapter}), serial, adapter),
              1e-9);
  }
}

TEST_P(GradientLayoutsTest, StagesBeginWithTheNumbersOfOneRank) {
  parallel::SingleRank one;
  const std::unique_ptr<models::Family> whole = runs_.Load({});
  DrawInitialWeights(whole->parameters(), {}, 9, one);
  std::map<std::string, at::Tensor> expected;
  for (const models::Param& param : whole->parameters()) expected[param.spec.name] = param.Value().detach();
  for (const int stages : {2, 4}) {
    if (stages > static_cast<int>(runs_.description().block_flops.size())) continue;
    const parallel::Mesh mesh = *parallel::Mesh::Create({.pipe = stages}, stages);
    std::vector<size_t> drawn(static_cast<size_t>(stages));
    RunRanks(stages, [&](ThreadRank& thread) {
      const std::unique_ptr<models::Family> stage = runs_.Load(runs_.ShareOf(mesh, thread.rank()));
      DrawInitialWeights(stage->parameters(), {}, 9, thread.world());
      for (const models::Param& param : stage->parameters()) {
        EXPECT_TRUE(at::equal(param.Value(), expected.at(param.spec.name))) << param.spec.name;
        if (param.block != models::Param::kNoBlock) ++drawn[static_cast<size_t>(thread.rank())];
      }
    });
    for (const size_t count : drawn) EXPECT_GT(count, 0u);
  }
}

TEST_P(GradientLayoutsTest, RecomputationChangesNoGradient) {
  const TrainingRuns::Result serial = runs_.Run({}, {}).front();
  EXPECT_LE(runs_.WorstError({}, runs_.Run({}, {.recompute = true}), serial), 1e-12);
}

// The losses of all samples are those of one rank that processes all of them, on every rank of a replica.
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

// Captions of different lengths, which some families neither pad nor mask, give the gradients and losses of passes of
// one sample each.
TEST_P(GradientLayoutsTest, CaptionsOfUnequalLengthsAreAsInPassesOfOneSampleEach) {
  const std::unique_ptr<models::Family> family = runs_.Load({});
  const TrainingBatch batch = runs_.Batch(*family, 0, TrainingRuns::kSamples);
  std::set<int64_t> lengths;
  for (const models::ConditioningRow& row : batch.rows) {
    if (row.text.defined()) lengths.insert(row.text.size(0));
  }
  if (!family->pads_texts()) {
    EXPECT_GT(lengths.size(), 1u);
  }
  const TrainingRuns::Result together = runs_.Run({}, {}).front();
  EXPECT_LE(runs_.WorstError({}, runs_.Run({}, {.passes = TrainingRuns::kSamples}), together), 1e-10);
  const std::vector<TrainingRuns::Result> adapter = runs_.Run({}, {.adapter = true});
  EXPECT_LE(runs_.WorstError({}, runs_.Run({}, {.passes = TrainingRuns::kSamples, .adapter = true}), adapter.front(),
                             /*adapter=*/true),
            1e-10);
}

INSTANTIATE_TEST_SUITE_P(Families, GradientLayoutsTest, testing::Values("flux_dev", "pixart_sigma"),
                         [](const auto& info) { return info.param; });
// run-tests.sh --long; the ordinary run has a family of each kind of text.
INSTANTIATE_TEST_SUITE_P(DISABLED_Long, GradientLayoutsTest,
                         testing::Values("dit", "hunyuan11", "hunyuan12", "pixart_alpha", "flux2_klein_base", "sd3",
                                         "sd35", "qwen_image", "z_image_base"),
                         [](const auto& info) { return info.param; });

// Models that look at pictures: on every layout each parameter's gradient is that of one rank, and on one rank it is
// that of the model's plain forward pass.
struct ReferenceModel {
  const char* folder;
  const char* pipeline = "";  // that of the folder
};

class ReferenceGradientsTest : public testing::TestWithParam<ReferenceModel> {
 protected:
  // Losses and gradients of the four samples, each in a forward pass of the whole transformer.
  TrainingRuns::Result PlainForwardPasses() const {
    const at::AutoGradMode with_gradients(true);
    const std::unique_ptr<models::Family> family = runs_.Load({});
    const TrainingBatch batch = runs_.Batch(*family, 0, TrainingRuns::kSamples, /*references=*/true);
    parallel::SingleRank one;
    parallel::LocalAttention attention;
    const int64_t side = runs_.description().size_multiple;
    const at::Tensor& noisy = batch.sample.noisy;
    models::LatentGeometry geometry = family->Geometry(3 * side, 5 * side);
    TORCH_CHECK(geometry.height == noisy.size(2) && geometry.width == noisy.size(3));
    TrainingRuns::Result result;
    at::Tensor sum = at::zeros({}, at::kDouble);
    for (size_t i = 0; i < batch.rows.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      models::TransformerInput input{.patches = family->ToPatches(noisy.narrow(0, row, 1)),
                                     .grid = geometry.grid,
                                     .span = {0, geometry.grid.count()},
                                     .timestep = batch.sample.timesteps.narrow(0, row, 1),
                                     .text = batch.rows[i].text.unsqueeze(0),
                                     .text_mask = {},
                                     .extras = {},
                                     .references = {},
                                     .reference_grids = batch.reference_grids};
      for (const at::Tensor& extra : batch.rows[i].extras) input.extras.push_back(extra.unsqueeze(0));
      for (const at::Tensor& picture : batch.references) input.references.push_back(picture.narrow(0, row, 1));
      const at::Tensor output =
          models::RunTransformer(family->transformer(), input, {.attention = attention, .tensor = one, .world = one});
      const at::Tensor error = family->ToPrediction(output, geometry) - batch.sample.target.narrow(0, row, 1);
      const at::Tensor loss = batch.sample.weights[i] * error.square().mean();
      result.losses.push_back(loss.item<double>());
      sum = sum + loss;
    }
    (sum / static_cast<double>(TrainingRuns::kSamples)).backward();
    double squares = 0;
    for (const models::Param& param : family->parameters()) {
      if (!param.storage.requires_grad()) continue;
      const at::Tensor& whole = param.storage.grad();
      const at::Tensor gradient = whole.defined() ? param.View(whole) : at::zeros_like(param.Value());
      squares += gradient.square().sum().item<double>();
      result.gradients[param.spec.name] = gradient.clone();
    }
    result.norm = std::sqrt(squares);
    return result;
  }

  const TrainingRuns runs_{GetParam().folder, GetParam().pipeline};
};

TEST_P(ReferenceGradientsTest, OnOneRankTheyAreThoseOfThePlainForwardPass) {
  const TrainingRuns::Result plain = PlainForwardPasses();
  const std::vector<TrainingRuns::Result> own = runs_.Run({}, {.references = true});
  EXPECT_LE(runs_.WorstError({}, own, plain), 1e-10);
  for (size_t i = 0; i < TrainingRuns::kSamples; ++i) {
    EXPECT_NEAR(own.front().losses[i], plain.losses[i], 1e-11 * plain.losses[i]);
  }
  const TrainingRuns::Result without = runs_.Run({}, {}).front();
  for (size_t i = 0; i < TrainingRuns::kSamples; ++i) {
    EXPECT_GT(std::abs(without.losses[i] - plain.losses[i]), 1e-6 * plain.losses[i]) << "the pictures have no effect";
  }
}

TEST_P(ReferenceGradientsTest, EveryLayoutHasTheGradientsOfOneRank) {
  struct Layout {
    MeshShape shape;
    TrainingRuns::Options options = {};
  };
  const Layout layouts[] = {
      {{.ulysses = 2}},
      {{.ring = 2}},
      {{.ring = 3}, {.recompute = true}},
      {{.tensor = 2}},
      {{.tensor = 2}, {.sequence_parallel = true}},
      {{.pipe = 2}, {.passes = 2}},
      {{.data = 2}},
      {{.data = 2}, {.sharded = true}},
      {{.ring = 2, .ulysses = 2}},
      {{.ulysses = 2, .tensor = 2}, {.recompute = true, .sequence_parallel = true}},
      {{.ring = 2, .tensor = 2}, {.sequence_parallel = true, .adapter = true}},
      {{.data = 2, .pipe = 2, .ulysses = 2}, {.adapter = true}},
      {{.pipe = 2, .tensor = 2}, {.sequence_parallel = true, .passes = 4, .adapter = true, .rendezvous = true}}};
  std::map<bool, TrainingRuns::Result> serial;  // by whether the adapter or all weights are trained
  for (const bool adapter : {false, true}) {
    serial[adapter] = runs_.Run({}, {.adapter = adapter, .references = true}).front();
  }
  size_t valid = 0;
  for (const auto& [shape, options] : layouts) {
    const bool divides = runs_.description().heads % (shape.ulysses * shape.tensor) == 0;
    if (!divides || shape.pipe > static_cast<int>(runs_.description().block_flops.size())) continue;
    ++valid;
    TrainingRuns::Options with_references = options;
    with_references.references = true;
    const std::vector<TrainingRuns::Result> results = runs_.Run(shape, with_references);
    EXPECT_LE(runs_.WorstError(shape, results, serial.at(options.adapter), options.adapter), 1e-10)
        << "data " << shape.data << " pipe " << shape.pipe << " ring " << shape.ring << " ulysses " << shape.ulysses
        << " tensor " << shape.tensor;
  }
  EXPECT_GE(valid, 9u);
}

INSTANTIATE_TEST_SUITE_P(Families, ReferenceGradientsTest,
                         testing::Values(ReferenceModel{"flux_dev"}, ReferenceModel{"qwen_edit_2511"}),
                         [](const auto& info) { return info.param.folder; });
// run-tests.sh --long. The references of the last model attend only to one another.
INSTANTIATE_TEST_SUITE_P(DISABLED_Long, ReferenceGradientsTest,
                         testing::Values(ReferenceModel{"flux2_dev"}, ReferenceModel{"flux2_klein_base"},
                                         ReferenceModel{"qwen_image"},
                                         ReferenceModel{"flux2_klein", "Flux2KleinKVPipeline"}),
                         [](const auto& info) { return info.param.folder; });

}  // namespace
}  // namespace tessera::runtime
