#include "parallel/plan/token_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/support/ownership_fault.h"

namespace tessera::parallel {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr TokenRows kOrders[] = {TokenRows::kImage, TokenRows::kText, TokenRows::kTextThenImage,
                                 TokenRows::kImageThenText};

int64_t Sum(const std::vector<int64_t>& table) { return std::accumulate(table.begin(), table.end(), int64_t{0}); }

int64_t Count(const std::vector<TokenRun>& runs) {
  int64_t count = 0;
  for (const TokenRun& run : runs) count += run.tokens.count();
  return count;
}

std::string Name(const TokenCounts& c) {
  return absl::StrCat("image ", c.image, " text ", c.text, " patches ", c.patches, " ring ", c.ring, " ulysses ",
                      c.ulysses);
}

// Up to eight ranks and eight patches, with token counts that are not divisible by them.
template <typename Function>
void ForEachLayout(const std::vector<int64_t>& images, Function function) {
  for (const int64_t image : images) {
    for (int ring = 1; ring <= 8; ++ring) {
      for (int ulysses = 1; ring * ulysses <= 8; ++ulysses) {
        for (int patches = 1; patches <= 8; ++patches) {
          const TokenCounts counts = {image, (image * 7 + patches) % 23, patches, ring, ulysses};
          const auto layout = TokenLayout::Create(counts);
          ASSERT_TRUE(layout.ok()) << layout.status();
          function(*layout);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

std::vector<int64_t> EveryCount() {
  std::vector<int64_t> counts(71);
  std::iota(counts.begin(), counts.end(), int64_t{0});
  for (const int64_t large : {1023, 4097, 65537, 1000003}) counts.push_back(large);
  counts.push_back((int64_t{1} << 40) - 1);
  return counts;
}
const std::vector<int64_t> kSomeCounts = {0, 1, 2, 3, 5, 7, 13, 31, 64, 1021};

TEST(TokenLayoutTest, EveryTokenHasExactlyOneOwner) {
  ForEachLayout(EveryCount(),
                [](const TokenLayout& layout) { EXPECT_EQ(OwnershipFault(layout), "") << Name(layout.counts()); });
}

TEST(TokenLayoutTest, PatchesWithoutTextDifferByOneTokenAtMost) {
  for (const int64_t image : EveryCount()) {
    for (int patches = 1; patches <= 8; ++patches) {
      const TokenLayout layout = *TokenLayout::Create({.image = image, .patches = patches});
      for (int patch = 0; patch < patches; ++patch) {
        ASSERT_GE(layout.Patch(patch).count(), image / patches);
        ASSERT_LE(layout.Patch(patch).count(), (image + patches - 1) / patches);
      }
    }
  }
}

TEST(TokenLayoutTest, TheFirstPatchLeavesRoomForTheText) {
  const auto sizes = [](const TokenCounts& counts) {
    const TokenLayout layout = *TokenLayout::Create(counts);
    std::vector<int64_t> patches;
    for (int patch = 0; patch < counts.patches; ++patch) patches.push_back(layout.Patch(patch).count());
    return patches;
  };
  EXPECT_THAT(sizes({.image = 4096, .text = 512, .patches = 4}), ElementsAre(640, 1152, 1152, 1152));
  EXPECT_THAT(sizes({.image = 12, .text = 100, .patches = 3}), ElementsAre(2, 5, 5));
  EXPECT_THAT(sizes({.image = 12, .text = 100, .patches = 1}), ElementsAre(12));
  EXPECT_THAT(sizes({.image = 1, .text = 1, .patches = 2}), ElementsAre(0, 1));
}

TEST(TokenLayoutTest, DifferentTextsWithTheSameTextWorkHaveTheSamePatches) {
  const TokenLayout longest = *TokenLayout::Create({.image = 101, .text = 40, .patches = 4});
  for (const int64_t text : {0, 7, 40}) {
    const TokenLayout other = *TokenLayout::Create({.image = 101, .text = text, .patches = 4, .text_work = 40});
    for (int patch = 0; patch < 4; ++patch) EXPECT_EQ(other.Patch(patch), longest.Patch(patch));
    EXPECT_EQ(other.Text(0).count(), text);
  }
}

TEST(TokenLayoutTest, ReferencesAreTheLastTokensOfTheText) {
  for (int ring = 1; ring <= 4; ++ring) {
    for (int ulysses = 1; ulysses <= 3; ++ulysses) {
      for (const int64_t references : {0, 1, 6, 11}) {
        const TokenLayout layout = *TokenLayout::Create(
            {.image = 20, .text = 11, .patches = 2, .ring = ring, .ulysses = ulysses, .references = references});
        int64_t next = 11 - references;
        for (const TokenRun& run : layout.GatheredRuns(TokenRows::kReferences, layout.all())) {
          EXPECT_TRUE(run.text);
          EXPECT_EQ(run.tokens.begin, next);
          next = run.tokens.end;
        }
        EXPECT_EQ(next, 11) << Name(layout.counts());
        EXPECT_TRUE(layout.GatheredRuns(TokenRows::kReferences, {1, 2}).empty()) << "they run with patch 0";
      }
    }
  }
  EXPECT_FALSE(TokenLayout::Create({.image = 20, .text = 11, .references = 12}).ok());
}

TEST(TokenLayoutTest, OwnershipIsTheSameInAWholePassAndInPatches) {
  ForEachLayout(kSomeCounts, [](const TokenLayout& layout) {
    for (int ring = 0; ring < layout.counts().ring; ++ring) {
      for (int ulysses = 0; ulysses < layout.counts().ulysses; ++ulysses) {
        std::vector<TokenSpan> by_patch;
        for (int patch = 0; patch < layout.counts().patches; ++patch) {
          for (const TokenRun& run : layout.Runs(TokenRows::kImage, {patch, patch + 1}, ring, ulysses)) {
            if (!by_patch.empty() && by_patch.back().end == run.tokens.begin) {
              by_patch.back().end = run.tokens.end;
            } else {
              by_patch.push_back(run.tokens);
            }
          }
        }
        std::vector<TokenSpan> whole;
        for (const TokenRun& run : layout.Runs(TokenRows::kImage, layout.all(), ring, ulysses)) {
          whole.push_back(run.tokens);
        }
        ASSERT_EQ(whole, by_patch) << Name(layout.counts());
      }
    }
  });
}

TEST(TokenLayoutTest, TextRunsWithTheFirstPatchOnly) {
  const TokenLayout layout = *TokenLayout::Create({.image = 8, .text = 4, .patches = 2, .ring = 2});
  EXPECT_EQ(layout.Rows(TokenRows::kText, {0, 1}, 0, 0), 2);
  EXPECT_EQ(layout.Rows(TokenRows::kText, {1, 2}, 0, 0), 0);
  EXPECT_EQ(layout.Rows(TokenRows::kText, {0, 2}, 0, 0), 2);
  EXPECT_TRUE(layout.Runs(TokenRows::kText, {1, 2}, 0, 0).empty());
}

TEST(TokenLayoutTest, TablesAgreeWithTheRunsTheyCount) {
  ForEachLayout(kSomeCounts, [](const TokenLayout& layout) {
    const TokenCounts& counts = layout.counts();
    std::vector<PatchRange> passes = {layout.all()};
    for (int patch = 0; patch < counts.patches; ++patch) passes.push_back({patch, patch + 1});
    for (const PatchRange patches : passes) {
      for (const TokenRows rows : kOrders) {
        const std::vector<int64_t> group = layout.GroupRows(rows, patches);
        const std::vector<int64_t> ring_table = layout.RingRows(rows, patches);
        ASSERT_EQ(group.size(), static_cast<size_t>(layout.group_size()));
        ASSERT_EQ(Sum(group), Sum(ring_table));
        ASSERT_EQ(Sum(group), Count(layout.GatheredRuns(rows, patches)));
        for (int ring = 0; ring < counts.ring; ++ring) {
          const std::vector<int64_t> table = layout.UlyssesRows(rows, patches, ring);
          ASSERT_EQ(Sum(table), ring_table[ring]);
          ASSERT_EQ(Sum(table), Count(layout.ExchangedRuns(rows, patches, ring)));
          for (int ulysses = 0; ulysses < counts.ulysses; ++ulysses) {
            ASSERT_EQ(table[ulysses], layout.Rows(rows, patches, ring, ulysses));
            ASSERT_EQ(table[ulysses], group[ring * counts.ulysses + ulysses]);
          }
        }
      }
    }
  });
}

TEST(TokenLayoutTest, GatheringAWholePassGivesEveryTokenOnce) {
  ForEachLayout(kSomeCounts, [](const TokenLayout& layout) {
    for (const TokenRows rows : {TokenRows::kTextThenImage, TokenRows::kImageThenText}) {
      ASSERT_TRUE(CoverOnce(layout.GatheredRuns(rows, layout.all()), layout.counts().text, layout.counts().image))
          << Name(layout.counts());
    }
  });
}

TEST(TokenLayoutTest, EachStoreHasOneRowForEachTokenHeldAfterTheExchange) {
  ForEachLayout(kSomeCounts, [](const TokenLayout& layout) {
    for (int ring = 0; ring < layout.counts().ring; ++ring) {
      std::vector<int> filled(layout.StoreRows(ring), 0);
      for (const TokenRun& run : layout.ExchangedRuns(TokenRows::kImageThenText, layout.all(), ring)) {
        const int64_t row = layout.StoreRow(ring, run);
        for (int64_t i = 0; i < run.tokens.count(); ++i) ++filled.at(row + i);
      }
      ASSERT_TRUE(std::ranges::all_of(filled, [](int times) { return times == 1; })) << Name(layout.counts());
    }
  });
}

TEST(TokenLayoutTest, AStoreRowIsTheSameInAWholePassAndInAPatch) {
  const TokenLayout layout = *TokenLayout::Create({.image = 37, .text = 5, .patches = 3, .ring = 2, .ulysses = 2});
  for (int patch = 0; patch < 3; ++patch) {
    for (const TokenRun& run : layout.ExchangedRuns(TokenRows::kTextThenImage, {patch, patch + 1}, 1)) {
      const int64_t row = layout.StoreRow(1, run);
      for (int64_t i = 0; i < run.tokens.count(); ++i) {
        const TokenRun one = {run.text, {run.tokens.begin + i, run.tokens.begin + i + 1}};
        EXPECT_EQ(layout.StoreRow(1, one), row + i);
      }
    }
  }
}

TEST(TokenLayoutTest, SharesOfATextAndAnImageBalance) {
  const TokenLayout layout = *TokenLayout::Create({.image = 9, .text = 7, .ulysses = 2});
  EXPECT_THAT(layout.GroupRows(TokenRows::kImage, layout.all()), ElementsAre(5, 4));
  EXPECT_THAT(layout.GroupRows(TokenRows::kText, layout.all()), ElementsAre(3, 4));
}

TEST(TokenLayoutTest, ARankMayHoldNothing) {
  const TokenLayout layout = *TokenLayout::Create({.image = 1, .text = 0, .ring = 2});
  EXPECT_THAT(layout.RingRows(TokenRows::kTextThenImage, layout.all()), ElementsAre(1, 0));
  EXPECT_TRUE(layout.Runs(TokenRows::kTextThenImage, layout.all(), 1, 0).empty());
}

TEST(TokenLayoutTest, RowsAreJoinedInTheOrderAskedFor) {
  const TokenLayout layout = *TokenLayout::Create({.image = 4, .text = 2, .ring = 2});
  const TokenRun text = {true, {1, 2}}, image = {false, {2, 4}};
  EXPECT_THAT(layout.Runs(TokenRows::kTextThenImage, layout.all(), 1, 0), ElementsAre(text, image));
  EXPECT_THAT(layout.Runs(TokenRows::kImageThenText, layout.all(), 1, 0), ElementsAre(image, text));
}

TEST(TokenLayoutTest, RefusesWhatIsNoNumberOfTokensOrRanks) {
  EXPECT_THAT(TokenLayout::Create({.image = -1}).status().message(),
              HasSubstr("image tokens is -1; valid values are 0 to"));
  EXPECT_THAT(TokenLayout::Create({.text = int64_t{1} << 41}).status().message(), HasSubstr("text tokens"));
  EXPECT_THAT(TokenLayout::Create({.patches = 0}).status().message(), HasSubstr("patches is 0; valid values are 1 to"));
  EXPECT_FALSE(TokenLayout::Create({.ring = 1 << 10, .ulysses = 1 << 10}).ok());
}

}  // namespace
}  // namespace tessera::parallel
