#include "control/model/step_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <vector>

#include "base/files/file.h"
#include "tests/support/test_folder.h"

namespace tessera::control {
namespace {

using testing::HasSubstr;

class StepRecordTest : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "run");
    std::filesystem::create_directory(folder_ / "reference");
  }

  std::unique_ptr<StepRecordWriter> Writer(const std::string& name, int rank = 0) {
    absl::StatusOr<std::unique_ptr<StepRecordWriter>> writer = StepRecordWriter::Create(folder_ / name, rank);
    EXPECT_TRUE(writer.ok()) << writer.status();
    return *std::move(writer);
  }

  // Records four tokens at each of two steps and three blocks.
  void WriteReference() {
    const std::unique_ptr<StepRecordWriter> writer = Writer("reference");
    for (int step = 0; step < 2; ++step) {
      for (int block = 0; block < 3; ++block) writer->Write({.job = 1, .step = step, .block = block}, 0, kTokens);
    }
  }

  absl::StatusOr<RecordComparison> Compare(double bound = 1e-3) {
    return CompareRecords(folder_ / "run", folder_ / "reference", bound);
  }

  const std::vector<TokenDigest> kTokens = {{4, 1}, {4, -1}, {4, 0.5}, {4, 2}};
  TestFolder folder_;
};

TEST_F(StepRecordTest, EqualRunsDoNotPartHoweverTheirTokensAreDealt) {
  WriteReference();
  for (int rank = 0; rank < 2; ++rank) {
    const std::unique_ptr<StepRecordWriter> writer = Writer("run", rank);
    for (int step = 0; step < 2; ++step) {
      for (int block = 0; block < 3; ++block) {
        const StatePlace place{.job = 1, .step = step, .block = block};
        const std::span<const TokenDigest> tokens(kTokens);
        if (rank == 0) writer->Write(place, 1, tokens.subspan(1, 1));
        if (rank == 0) writer->Write(place, 3, tokens.subspan(3, 1));
        if (rank == 1) writer->Write(place, 0, tokens.first(1));
        if (rank == 1) writer->Write(place, 2, tokens.subspan(2, 1));
      }
    }
  }
  const absl::StatusOr<RecordComparison> comparison = Compare(0);
  ASSERT_TRUE(comparison.ok()) << comparison.status();
  EXPECT_EQ(comparison->states, 12);
  EXPECT_EQ(comparison->farthest, 0);
  EXPECT_TRUE(comparison->complete);
  EXPECT_FALSE(comparison->parting.has_value());
}

TEST_F(StepRecordTest, TheFirstPlaceInTheOrderOfComputingIsNamedWithItsFarthestRank) {
  WriteReference();
  for (int rank = 0; rank < 2; ++rank) {
    const std::unique_ptr<StepRecordWriter> writer = Writer("run", rank);
    for (int step = 0; step < 2; ++step) {
      for (int block = 0; block < 3; ++block) {
        std::vector<TokenDigest> tokens = {kTokens[2 * rank], kTokens[2 * rank + 1]};
        if (step == 0 && block == 2) tokens[1].product += rank == 1 ? 0.2 : 0.1;
        if (step == 1) tokens[0].product += 2;  // a larger distance, but later
        writer->Write({.job = 1, .step = step, .block = block}, 2 * rank, tokens);
      }
    }
  }
  const absl::StatusOr<RecordComparison> comparison = Compare();
  ASSERT_TRUE(comparison.ok() && comparison->parting.has_value()) << comparison.status();
  EXPECT_EQ(comparison->parting->place, (StatePlace{.job = 1, .step = 0, .block = 2}));
  EXPECT_EQ(comparison->parting->rank, 1);
  EXPECT_NEAR(comparison->parting->distance, 0.2 / std::sqrt(8), 1e-12);
  EXPECT_NEAR(comparison->farthest, 2 / std::sqrt(8), 1e-12);
  EXPECT_FALSE(Compare(1)->parting.has_value());
}

TEST_F(StepRecordTest, ANumberThatIsNoneIsFarthest) {
  WriteReference();
  Writer("run")->Write({.job = 1}, 0, std::vector<TokenDigest>(4, {4, std::numeric_limits<double>::quiet_NaN()}));
  const absl::StatusOr<RecordComparison> comparison = Compare(100);
  ASSERT_TRUE(comparison.ok() && comparison->parting.has_value()) << comparison.status();
  EXPECT_EQ(comparison->parting->distance, std::numeric_limits<double>::infinity());
  EXPECT_FALSE(comparison->complete);
}

TEST_F(StepRecordTest, StatesThatTheReferenceHasNotAreOfAnotherRun) {
  WriteReference();
  const std::unique_ptr<StepRecordWriter> writer = Writer("run");
  writer->Write({.job = 1}, 1, kTokens);
  EXPECT_EQ(Compare().status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(StepRecordTest, AFolderHoldsOneRun) {
  Writer("run");
  EXPECT_EQ(StepRecordWriter::Create(folder_ / "run", 0).status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(StepRecordWriter::Create(folder_ / "none", 0).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StepRecordTest, EveryCutAndEveryChangedHeaderIsRefused) {
  WriteReference();
  EXPECT_EQ(Compare().status().code(), absl::StatusCode::kNotFound);
  const std::string whole = base::ReadWholeFile(folder_ / "reference/rank-0.record", "record", 1 << 20).value();
  constexpr size_t kMagicBytes = 17, kStateBytes = 40 + 4 * 16;
  ASSERT_EQ(whole.size(), kMagicBytes + 6 * kStateBytes);
  for (size_t size = 0; size < whole.size(); ++size) {
    folder_.Write("run/rank-0.record", whole.substr(0, size));
    if (size >= kMagicBytes && (size - kMagicBytes) % kStateBytes == 0) continue;  // as left by a run that ended early
    EXPECT_THAT(std::string(Compare().status().message()), HasSubstr("rank-0.record is not a complete record")) << size;
  }
  for (const size_t byte : {size_t{0}, kMagicBytes + 31, kMagicBytes + 39}) {
    std::string changed = whole;
    changed[byte] = '\x7f';
    folder_.Write("run/rank-0.record", changed);
    EXPECT_EQ(Compare().status().code(), absl::StatusCode::kInvalidArgument) << byte;
  }
}

}  // namespace
}  // namespace tessera::control
