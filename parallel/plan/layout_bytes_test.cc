#include "parallel/plan/layout_bytes.h"

#include <gtest/gtest.h>

#include "parallel/plan/layout.h"

namespace tessera::parallel {
namespace {

Mesh MeshOf(const char* layout) {
  const MeshShape shape = ParseLayout(layout)->mesh;
  return *Mesh::Create(shape, static_cast<int>(NumRanks(shape)));
}

// FLUX.1: 19 double blocks and 38 single blocks of width 3,072; 1,024 x 1,024 pixels are 4,096 tokens, with 512 of
// text.
ExchangeModel Flux() {
  ExchangeModel model{.width = 3072, .output_features = 64, .prediction_features = 64, .blocks = {}, .long_skips = {}};
  model.blocks.resize(19, {.kind = BlockKind::kJoint});
  model.blocks.resize(57, {.kind = BlockKind::kFused});
  return model;
}
const ForwardPass kFluxPass{.image_tokens = 4096, .text_tokens = {512}, .element_bytes = 2, .skipped_blocks = {}};

ExchangedBytes FluxBytes(const char* layout, std::vector<int> bounds, int rank, const ForwardPass& pass = kFluxPass) {
  return PassBytes(Flux(), MeshOf(layout), bounds, rank, pass);
}

TEST(LayoutBytesTest, ARankThatIsAloneSendsNothing) { EXPECT_EQ(FluxBytes("serial", {0, 57}, 0).total(), 0); }

// The figures are computed by hand from the text of docs/parallelism.md.

TEST(LayoutBytesTest, UlyssesMovesFourTimesTheRanksOwnRowsAnAttention) {
  // 2,304 rows of 3,072 channels, half of which are not sent: 4 · 2,304 · 1,536 · 2 bytes in each of 57 attentions.
  const ExchangedBytes expected{.sequence = 2048 * 64 * 2, .ulysses = int64_t{57} * 4 * 2304 * 1536 * 2};
  for (const int rank : {0, 1}) EXPECT_EQ(FluxBytes("ulysses=2", {0, 57}, rank), expected);
}

TEST(LayoutBytesTest, TheRingHandsOnTheKeysAndValuesOfAllRanksButOne) {
  const ExchangedBytes expected{.sequence = 1024 * 64 * 2 * 3, .ring = int64_t{57} * 2 * 3 * 1152 * 3072 * 2};
  for (const int rank : {0, 1, 2, 3}) EXPECT_EQ(FluxBytes("ring=4", {0, 57}, rank), expected);
}

TEST(LayoutBytesTest, ATensorRankSendsEachSumOnceBetweenTwo) {
  // Two products for each stream of a double block, one for both streams of a single block.
  const ExchangedBytes expected{.tensor = (int64_t{19} * 2 + 38) * 4608 * 3072 * 2};
  for (const int rank : {0, 1}) EXPECT_EQ(FluxBytes("tensor=2", {0, 57}, rank), expected);
}

TEST(LayoutBytesTest, AStageSendsItsStateAndTheLastOneTheResult) {
  EXPECT_EQ(FluxBytes("pipe=3", {0, 10, 30, 57}, 0), ExchangedBytes{.pipe = 4608 * 3072 * 2});
  EXPECT_EQ(FluxBytes("pipe=3", {0, 10, 30, 57}, 1), ExchangedBytes{.pipe = 4608 * 3072 * 2});
  EXPECT_EQ(FluxBytes("pipe=3", {0, 10, 30, 57}, 2), ExchangedBytes{.pipe = 4096 * 64 * 2});
}

TEST(LayoutBytesTest, TextBetweenStagesIsPaddedToTheLongestRowOfItsCfgRank) {
  const ExchangeModel model{
      .width = 8, .blocks = std::vector<BlockExchange>(2, {.kind = BlockKind::kJoint}), .long_skips = {}};
  const ForwardPass pass{.image_tokens = 10, .text_tokens = {3, 5, 9}, .element_bytes = 4, .skipped_blocks = {}};
  const std::vector<int> bounds = {0, 1, 2};
  EXPECT_EQ(PassBytes(model, MeshOf("cfg=2,pipe=2"), bounds, 0, pass).pipe, 2 * (10 + 5) * 8 * 4);
  EXPECT_EQ(PassBytes(model, MeshOf("cfg=2,pipe=2"), bounds, 2, pass).pipe, (10 + 9) * 8 * 4);
}

TEST(LayoutBytesTest, TextThatEveryRankReadsStaysWhereItIs) {
  const ExchangeModel model{
      .width = 8, .blocks = std::vector<BlockExchange>(2, {.kind = BlockKind::kCross}), .long_skips = {}};
  const ForwardPass pass{.image_tokens = 10, .text_tokens = {3}, .element_bytes = 4, .skipped_blocks = {}};
  EXPECT_EQ(PassBytes(model, MeshOf("pipe=2"), std::vector<int>{0, 1, 2}, 0, pass).pipe, 10 * 8 * 4);
}

TEST(LayoutBytesTest, OnlyTheFirstStageGathersTheResult) {
  const std::vector<int> bounds = {0, 20, 57};
  for (int rank = 0; rank < 8; ++rank) {
    const ExchangedBytes bytes =
        FluxBytes("cfg=2,pipe=2,ulysses=2", bounds, rank,
                  {.image_tokens = 4096, .text_tokens = {512, 512}, .element_bytes = 2, .skipped_blocks = {}});
    const bool first = rank % 4 < 2;
    EXPECT_EQ(bytes.sequence, first ? 2048 * 64 * 2 : 0) << rank;
    EXPECT_EQ(bytes.cfg, first ? 4096 * 64 * 4 : 0) << rank;
  }
}

TEST(LayoutBytesTest, ALongSkipIsSentOnlyBetweenStages) {
  const ExchangeModel model{.width = 8,
                            .output_features = 4,
                            .blocks = std::vector<BlockExchange>(6, {.kind = BlockKind::kCross}),
                            .long_skips = {{.from = 0, .to = 5}, {.from = 1, .to = 4}, {.from = 2, .to = 3}}};
  const ForwardPass pass{.image_tokens = 10, .text_tokens = {7}, .element_bytes = 4, .skipped_blocks = {}};
  const std::vector<int> bounds = {0, 2, 5, 6};
  const int64_t state = 10 * 8 * 4;
  // Stage 0 has blocks 0 and 1, stage 1 has 2 to 4; the skip within stage 1 is not sent.
  EXPECT_EQ(PassBytes(model, MeshOf("pipe=3"), bounds, 0, pass).pipe, state + 2 * state);
  EXPECT_EQ(PassBytes(model, MeshOf("pipe=3"), bounds, 1, pass).pipe, state);
  EXPECT_EQ(PassBytes(model, MeshOf("pipe=3"), bounds, 2, pass).pipe, 10 * 4 * 4);
}

TEST(LayoutBytesTest, PredictionsTravelInSinglePrecisionAtLeast) {
  ForwardPass pass = kFluxPass;
  pass.text_tokens = {512, 512, 512};
  EXPECT_EQ(FluxBytes("cfg=2", {0, 57}, 0, pass), ExchangedBytes{.cfg = 2 * 4096 * 64 * 4});
  EXPECT_EQ(FluxBytes("cfg=2", {0, 57}, 1, pass), ExchangedBytes{.cfg = 1 * 4096 * 64 * 4});
  pass.element_bytes = 8;
  EXPECT_EQ(FluxBytes("cfg=2", {0, 57}, 1, pass), ExchangedBytes{.cfg = 1 * 4096 * 64 * 8});
}

TEST(LayoutBytesTest, ACfgRankWithoutRowsSendsNothing) {
  EXPECT_EQ(FluxBytes("cfg=2,ulysses=2,tensor=2", {0, 57}, 7).total(), 0);
}

TEST(LayoutBytesTest, BlocksThatAreLeftOutExchangeNothing) {
  ForwardPass pass = kFluxPass;
  pass.skipped_blocks = {3, 20};
  EXPECT_EQ(FluxBytes("tensor=2", {0, 57}, 0, pass).tensor, (int64_t{18} * 2 + 37) * 4608 * 3072 * 2);
}

}  // namespace
}  // namespace tessera::parallel
