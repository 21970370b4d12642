#include "models/weights/read_ahead.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/read_ahead_parts.h"

namespace tessera::models {
namespace {

TEST(ReadAheadTest, EveryTurnHasItsBytesUntilItIsReleased) {
  ReadAheadParts parts(/*turns=*/9, /*buffers=*/3);
  ReadAhead reads(parts.folder(), parts.turns(), parts.buffers());
  for (size_t turn = 0; turn < 9; ++turn) {
    ASSERT_TRUE(reads.Await(turn).ok());
    EXPECT_EQ(parts.InBufferOf(turn), parts.Expected(turn));
    // All turns that may be read ahead have been read, and this turn's buffer is unchanged.
    const size_t last = std::min<size_t>(turn + 2, 8);
    ASSERT_TRUE(reads.Await(last).ok());
    EXPECT_EQ(parts.InBufferOf(turn), parts.Expected(turn));
    reads.ReleaseBefore(turn + 1);
  }
}

TEST(ReadAheadTest, KeepsRunsOfRowsSideBySideWhereAsked) {
  ReadAheadParts parts(/*turns=*/1, /*buffers=*/1);
  std::string kept(8, '\0');
  // Two rows of eight bytes, starting at the second byte of the tensor.
  const std::vector<ReadTurn> turns = {{FileRead{.location = &parts.location(),
                                                 .offset = 1,
                                                 .rows = 2,
                                                 .row_bytes = 8,
                                                 .kept = {{.begin = 1, .count = 1}, {.begin = 5, .count = 3}},
                                                 .to = reinterpret_cast<std::byte*>(kept.data())}}};
  EXPECT_EQ(turns[0][0].kept_bytes(), 8);
  ReadAhead reads(parts.folder(), turns, parts.buffers());
  ASSERT_TRUE(reads.Await(0).ok());
  const std::string all = parts.all();
  EXPECT_EQ(kept, all.substr(2, 1) + all.substr(6, 3) + all.substr(10, 1) + all.substr(14, 3));
}

TEST(ReadAheadTest, AFileThatEndsEarlyIsTheErrorOfItsTurnAlone) {
  ReadAheadParts parts(/*turns=*/4, /*buffers=*/2);
  std::filesystem::resize_file(parts.file(), std::filesystem::file_size(parts.file()) - 1);
  ReadAhead reads(parts.folder(), parts.turns(), parts.buffers());
  for (size_t turn = 0; turn < 3; ++turn) {
    EXPECT_TRUE(reads.Await(turn).ok());
    reads.ReleaseBefore(turn + 1);
  }
  EXPECT_EQ(reads.Await(3).code(), absl::StatusCode::kDataLoss);
}

TEST(ReadAheadTest, WhoGivesUpWaitsForNoFurtherTurn) {
  ReadAheadParts parts(/*turns=*/100, /*buffers=*/2);
  ReadAhead reads(parts.folder(), parts.turns(), parts.buffers());
  EXPECT_TRUE(reads.Await(0).ok());
}

}  // namespace
}  // namespace tessera::models
