#include "parallel/plan/layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace tessera::parallel {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr LayoutModel kGuided = {.heads = 24, .blocks = 8, .max_cfg_branches = 2, .usual_cfg_branches = 2};

Layout Parsed(const std::string& text) {
  const auto layout = ParseLayout(text);
  EXPECT_TRUE(layout.ok()) << layout.status();
  return layout.value_or(Layout{});
}
std::string ParseError(const std::string& text) { return std::string(ParseLayout(text).status().message()); }
std::string CheckError(const std::string& text, const LayoutModel& model, const LayoutPlace& place = {}) {
  return std::string(CheckLayout(Parsed(text), model, place).message());
}
std::vector<std::string> Texts(const std::vector<Layout>& layouts) {
  std::vector<std::string> texts;
  for (const Layout& layout : layouts) texts.push_back(LayoutText(layout));
  return texts;
}

TEST(LayoutTextTest, IsReadInAnyOrderAndPrintedInOne) {
  const Layout layout = Parsed("warmup=1, patches=4,tensor=2, ulysses =2,ring=2,pipe= 2,cfg=2");
  EXPECT_EQ(layout,
            (Layout{.mesh = {.cfg = 2, .pipe = 2, .ring = 2, .ulysses = 2, .tensor = 2}, .patches = 4, .warmup = 1}));
  EXPECT_EQ(LayoutText(layout), "cfg=2,pipe=2,ring=2,ulysses=2,tensor=2,patches=4,warmup=1");
}

TEST(LayoutTextTest, LeavesOnesOut) {
  EXPECT_EQ(LayoutText(Parsed("cfg=1,pipe=2,ring=1,patches=1,warmup=all")), "pipe=2");
  EXPECT_EQ(LayoutText(Parsed("tensor=1")), "serial");
  EXPECT_EQ(Parsed("serial"), Layout{});
}

TEST(LayoutTextTest, NamesWhatAWarmUpIsNotNeededForWithoutIt) {
  EXPECT_EQ(LayoutText(Parsed("ring=2,warmup=3")), "ring=2");
}

TEST(LayoutTextTest, EveryLayoutSurvivesBeingPrintedAndRead) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (Layout layout : AllLayouts(ranks)) {
      EXPECT_EQ(Parsed(LayoutText(layout)), layout);
      layout.patches = 8;
      EXPECT_EQ(Parsed(LayoutText(layout)), layout);
      layout.warmup = 2;
      EXPECT_EQ(Parsed(LayoutText(layout)), layout);
    }
  }
}

TEST(LayoutTextTest, OnlyPatchesAfterAWarmUpAreApproximate) {
  EXPECT_TRUE(Parsed("cfg=2,pipe=2,ring=2").lossless());
  EXPECT_TRUE(Parsed("pipe=2,patches=4").lossless());
  EXPECT_FALSE(Parsed("pipe=2,patches=4,warmup=1").lossless());
}

TEST(LayoutTextTest, NamesAnUnknownFieldAndTheNearestValidOne) {
  EXPECT_EQ(
      ParseError("cfg=2,ulyses=2"),
      "layout 'cfg=2,ulyses=2': 'ulyses' is not a part of a layout; valid values are cfg, pipe, ring, ulysses, tensor, "
      "patches, warmup, or serial alone; the nearest is ulysses");
  EXPECT_THAT(ParseError("serial,cfg=2"), HasSubstr("'serial' is not a part of a layout"));
  EXPECT_THAT(ParseError("CFG=2"), HasSubstr("the nearest is cfg"));
  EXPECT_THAT(ParseError(""), HasSubstr("layout '': '' is not a part of a layout"));
  EXPECT_THAT(ParseError("cfg=2,"), HasSubstr("'' is not a part of a layout"));
}

TEST(LayoutTextTest, RefusesDegreesThatAreNone) {
  EXPECT_EQ(ParseError("ring=0"), "layout 'ring=0': ring is '0'; valid values are 1 to 8, the nearest is 1");
  EXPECT_THAT(ParseError("ring=9"), HasSubstr("ring is '9'; valid values are 1 to 8, the nearest is 8"));
  EXPECT_THAT(ParseError("ring=99999999999999999999"), HasSubstr("the nearest is 8"));
  EXPECT_THAT(ParseError("patches=65"), HasSubstr("patches is '65'; valid values are 1 to 64, the nearest is 64"));
  EXPECT_THAT(ParseError("pipe=2,warmup=0"),
              HasSubstr("warmup is '0'; valid values are 1 to 10000 or all, the nearest is 1"));
  for (const std::string value : {"", "-2", "+2", "two", "2x", "2.0", "0x2", "2=2", "all"}) {
    EXPECT_THAT(ParseError("tensor=" + value), HasSubstr("tensor is '" + value + "'; valid values are 1 to 8"))
        << value;
  }
}

TEST(LayoutTextTest, RefusesAFieldWithoutAValue) {
  EXPECT_THAT(ParseError("cfg"), HasSubstr("cfg has no value; write cfg=2"));
}

TEST(LayoutTextTest, RefusesAFieldGivenTwice) {
  EXPECT_THAT(ParseError("cfg=2,ring=2,cfg=2"), HasSubstr("cfg is given twice"));
  EXPECT_THAT(ParseError("warmup=all,warmup=all"), HasSubstr("warmup is given twice"));
}

TEST(LayoutTextTest, ShowsGarbageReadably) {
  EXPECT_THAT(ParseError(std::string("\x1b[31m\xff\0_", 8)), HasSubstr("layout '?[31m?"
                                                                       "?_'"));
  EXPECT_LT(ParseError(std::string(1 << 20, ',')).size(), 200u);
}

TEST(LayoutCheckTest, HeadsMustDivideOverUlyssesAndTensor) {
  const LayoutModel model = {.heads = 6, .blocks = 4};
  EXPECT_THAT(CheckError("ulysses=4", model),
              HasSubstr("layout ulysses=4: ulysses is 4, which does not divide the 6 heads "
                        "of the model; valid values are 1, 2, 3, 6 (ring may have any degree)"));
  EXPECT_THAT(CheckError("tensor=4", model),
              HasSubstr("tensor is 4, which does not divide the model's 6 heads; valid values are 1, 2, 3, 6"));
  EXPECT_THAT(
      CheckError("ulysses=2,tensor=2", model),
      HasSubstr("ulysses is 2, which does not divide the 3 heads that tensor leaves to a rank; valid values are 1, 3"));
}

TEST(LayoutCheckTest, TensorMustDivideTheMlp) {
  EXPECT_THAT(
      CheckError("tensor=3", {.heads = 24, .blocks = 4, .mlp_width = 512}),
      HasSubstr("tensor is 3, which does not divide the 512 features of the model's MLP; valid values are 1, 2, 4, 8"));
}

TEST(LayoutCheckTest, EveryStageNeedsABlock) {
  EXPECT_THAT(CheckError("pipe=3", {.heads = 4, .blocks = 2}),
              HasSubstr("pipe is 3, but the model has 2 blocks; valid values are 1 to 2"));
}

TEST(LayoutCheckTest, EveryStageNeedsAPatchUnlessAllStepsAreWarmUp) {
  const std::string error =
      "patches is 2, fewer than the 4 stages, so stages would be idle; valid values are 4 to 64, or warmup=all";
  EXPECT_THAT(CheckError("pipe=4,patches=2,warmup=1", kGuided), HasSubstr(error));
  EXPECT_THAT(CheckError("pipe=4,patches=2,warmup=3", kGuided, {.steps = 4}), HasSubstr(error));
  EXPECT_TRUE(CheckLayout(Parsed("pipe=4,patches=2,warmup=4"), kGuided, {.steps = 4}).ok());
  EXPECT_TRUE(CheckLayout(Parsed("pipe=4,patches=2"), kGuided).ok());
  EXPECT_TRUE(CheckLayout(Parsed("pipe=4,patches=4,warmup=1"), kGuided).ok());
}

TEST(LayoutCheckTest, PipeFusionIsNotForAModelOfFewSteps) {
  const LayoutModel model = {.heads = 4, .blocks = 4, .distilled_steps = 10};
  EXPECT_THAT(CheckError("pipe=2,patches=4,warmup=1", model),
              AllOf(HasSubstr("warmup is 1, and PipeFusion is not for a model that is distilled to 10 steps, of which "
                              "its warm-up would be most; valid values are warmup=all, or layouts without patches"),
                    HasSubstr("Nearest valid with 2 ranks: pipe=2; ")));
  EXPECT_THAT(CheckError("patches=4,warmup=1", model), HasSubstr("Nearest valid with 1 rank: serial"));
  EXPECT_TRUE(CheckLayout(Parsed("pipe=2,patches=4"), model).ok()) << "all steps are warm-up";
  EXPECT_TRUE(CheckLayout(Parsed("pipe=2"), model).ok());
  for (const int steps : {0, 11}) {
    EXPECT_TRUE(
        CheckLayout(Parsed("pipe=2,patches=4,warmup=1"), {.heads = 4, .blocks = 4, .distilled_steps = steps}).ok());
  }
}

TEST(LayoutCheckTest, GuidanceHasTwoBranchesAtMost) {
  EXPECT_THAT(
      CheckError("cfg=2", {.heads = 4, .blocks = 4, .max_cfg_branches = 1}),
      HasSubstr(
          "cfg is 2, but the model has one branch without guidance; valid values are 1. Nearest valid with 2 ranks: "));
  EXPECT_THAT(CheckError("cfg=3", kGuided),
              HasSubstr("cfg is 3, but guidance has two branches to share; valid values are 1, 2"));
}

TEST(LayoutCheckTest, TheLayoutUsesExactlyTheRanksThereAre) {
  EXPECT_THAT(CheckError("cfg=2,ring=2", kGuided, {.ranks = 2}),
              HasSubstr("it needs 4 ranks, but there are 2. Nearest valid with 2 ranks: cfg=2; ring=2"));
  EXPECT_THAT(CheckError("cfg=2", kGuided, {.ranks = 1}),
              HasSubstr("but there is 1. Nearest valid with 1 rank: serial"));
  EXPECT_THAT(CheckError("cfg=2,ring=8", kGuided), HasSubstr("it needs 16 ranks; a group has at most 8"));
}

TEST(LayoutCheckTest, WeightsMustFit) {
  const uint64_t gib = uint64_t{1} << 30;
  const LayoutModel model = {
      .heads = 4, .blocks = 4, .block_bytes = 16 * gib, .other_bytes = gib, .memory_bytes = 10 * gib};
  EXPECT_THAT(CheckError("ring=2", model),
              AllOf(HasSubstr("a rank would hold 17 GiB of weights, and has 10 GiB for them"),
                    HasSubstr("Nearest valid with 2 ranks: tensor=2; pipe=2")));
  EXPECT_THAT(CheckError("serial", model), HasSubstr("No layout is valid with 1 rank"));
  EXPECT_EQ(WeightBytes(Parsed("pipe=3"), model), 9 * gib);  // two of four blocks
  EXPECT_EQ(WeightBytes(Parsed("pipe=2,tensor=2"), model), 5 * gib);
}

TEST(LayoutCheckTest, OneRankHoldsEveryByteOfBlocksThatDoNotDivide) {
  const LayoutModel model = {.blocks = 10, .block_bytes = 48, .other_bytes = 5};
  EXPECT_EQ(WeightBytes(Parsed("serial"), model), 53u);
  EXPECT_EQ(WeightBytes(Parsed("pipe=2"), model), 24u + 5);
}

TEST(LayoutCheckTest, NearestLayoutsChangeLittleAndKeepTheRanks) {
  const LayoutModel model = {.heads = 6, .blocks = 4, .max_cfg_branches = 2};
  EXPECT_THAT(CheckError("cfg=2,ulysses=4", model), HasSubstr("Nearest valid with 8 ranks: cfg=2,ring=2,ulysses=2; "));
}

TEST(LayoutCheckTest, NearestLayoutsKeepPatchesAndWarmUpWithTheStages) {
  EXPECT_THAT(Texts(NearestLayouts(Parsed("pipe=8,patches=4,warmup=2"), kGuided)).front(), "pipe=8,patches=8,warmup=2");
  for (const Layout& layout : NearestLayouts(Parsed("pipe=3,patches=4,warmup=1"), {.heads = 3, .blocks = 2})) {
    EXPECT_TRUE(layout.lossless()) << LayoutText(layout);
  }
}

TEST(LayoutCheckTest, NearestLayoutsAreValidAndAtMostFive) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const LayoutModel& model :
         {LayoutModel{.heads = 4, .blocks = 2, .max_cfg_branches = 2}, LayoutModel{.heads = 3, .blocks = 19}}) {
      for (const JudgedLayout& judged : JudgeLayouts(ranks, model)) {
        const std::vector<Layout> nearest = NearestLayouts(judged.layout, model);
        ASSERT_FALSE(nearest.empty());
        ASSERT_LE(nearest.size(), 5u);
        for (const Layout& layout : nearest) {
          ASSERT_TRUE(CheckLayout(layout, model, {.ranks = ranks}).ok()) << LayoutText(layout);
        }
        if (judged.verdict.ok()) {
          ASSERT_EQ(nearest.front(), judged.layout);
        }
      }
    }
  }
}

TEST(LayoutCheckTest, RefusesSizesThatNoTextHas) {
  EXPECT_THAT(CheckLayout({.mesh = {.cfg = 0}}, kGuided).message(), HasSubstr("cfg is 0; valid values are 1 to 8"));
  EXPECT_FALSE(CheckLayout({.mesh = {.ring = 1 << 30, .ulysses = 1 << 30, .tensor = 1 << 30}}, kGuided).ok());
  EXPECT_FALSE(CheckLayout({.patches = 0}, kGuided).ok());
  EXPECT_FALSE(CheckLayout({.patches = 2, .warmup = 0}, kGuided).ok());
}

TEST(AutoLayoutTest, SharesGuidanceFirstThenHeadsThenTokens) {
  EXPECT_EQ(LayoutText(*AutoLayout(1, kGuided)), "serial");
  EXPECT_EQ(LayoutText(*AutoLayout(2, kGuided)), "cfg=2");
  EXPECT_EQ(LayoutText(*AutoLayout(3, kGuided)), "ulysses=3");
  EXPECT_EQ(LayoutText(*AutoLayout(5, kGuided)), "ring=5");
  EXPECT_EQ(LayoutText(*AutoLayout(8, kGuided)), "cfg=2,ulysses=4");
  EXPECT_EQ(LayoutText(*AutoLayout(8, {.heads = 6, .blocks = 2})), "ring=4,ulysses=2");
}

TEST(AutoLayoutTest, KeepsUlyssesWhereRanksAreNear) {
  LayoutModel model = kGuided;
  EXPECT_EQ(LayoutText(*AutoLayout(8, model, 4)), "cfg=2,ulysses=4");
  EXPECT_EQ(LayoutText(*AutoLayout(8, model, 2)), "cfg=2,ring=2,ulysses=2");
  EXPECT_EQ(LayoutText(*AutoLayout(6, model, 3)), "cfg=2,ulysses=3");
  model.usual_cfg_branches = 1;  // guided only if a request asks for it
  EXPECT_EQ(LayoutText(*AutoLayout(8, model, 8)), "ulysses=8");
  EXPECT_EQ(LayoutText(*AutoLayout(8, model, 4)), "ring=2,ulysses=4");
  EXPECT_EQ(LayoutText(*AutoLayout(6, model, 2)), "ring=3,ulysses=2");
}

TEST(AutoLayoutTest, AddsStagesWhenMemoryAsksForThem) {
  LayoutModel model = kGuided;
  model.block_bytes = 800;
  model.memory_bytes = 400;
  EXPECT_EQ(LayoutText(*AutoLayout(4, model)), "cfg=2,pipe=2");
  EXPECT_EQ(LayoutText(*AutoLayout(8, model)), "cfg=2,pipe=2,ulysses=2");
  model.memory_bytes = 200;
  EXPECT_EQ(LayoutText(*AutoLayout(4, model)), "pipe=4");
  model.memory_bytes = 99;
  EXPECT_THAT(AutoLayout(8, model).status().message(), HasSubstr("no layout of 8 ranks"));
}

TEST(AutoLayoutTest, IsValidAndLosslessForEveryNumberOfRanks) {
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    for (const int heads : {1, 3, 4, 16, 24, 38}) {
      for (const int branches : {1, 2}) {
        const LayoutModel model = {
            .heads = heads, .blocks = 2, .max_cfg_branches = branches, .usual_cfg_branches = branches};
        const auto layout = AutoLayout(ranks, model);
        ASSERT_TRUE(layout.ok()) << layout.status();
        EXPECT_TRUE(CheckLayout(*layout, model, {.ranks = ranks}).ok());
        EXPECT_TRUE(layout->lossless());
      }
    }
  }
}

TEST(AutoLayoutTest, RefusesNumbersOfRanksThatNoGroupHas) {
  EXPECT_THAT(AutoLayout(0, kGuided).status().message(),
              HasSubstr("the number of ranks is 0; valid values are 1 to 8, the nearest is 1"));
  EXPECT_THAT(AutoLayout(9, kGuided).status().message(), HasSubstr("the nearest is 8"));
}

TEST(AllLayoutsTest, HasEveryFactorisationOnce) {
  // Ordered factorisations of n into five factors: for each prime power p^k of n, C(k + 4, 4).
  const int expected[] = {1, 5, 5, 15, 5, 25, 5, 35};
  for (int ranks = 1; ranks <= kMaxRanks; ++ranks) {
    const std::vector<Layout> layouts = AllLayouts(ranks);
    const std::vector<std::string> texts = Texts(layouts);
    EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), static_cast<size_t>(expected[ranks - 1]));
    EXPECT_EQ(layouts.size(), static_cast<size_t>(expected[ranks - 1]));
    for (const Layout& layout : layouts) EXPECT_EQ(layout.ranks(), ranks);
  }
}

TEST(AllLayoutsTest, EachIsJudged) {
  const std::vector<JudgedLayout> judged = JudgeLayouts(2, {.heads = 3, .blocks = 1, .max_cfg_branches = 1});
  std::vector<std::string> valid, invalid;
  for (const JudgedLayout& one : judged) (one.verdict.ok() ? valid : invalid).push_back(LayoutText(one.layout));
  EXPECT_THAT(valid, ElementsAre("ring=2"));
  EXPECT_THAT(invalid, ElementsAre("cfg=2", "ulysses=2", "tensor=2", "pipe=2"));
}

}  // namespace
}  // namespace tessera::parallel
