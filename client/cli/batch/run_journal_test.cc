#include "client/cli/batch/run_journal.h"

#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"

namespace tessera::client {
namespace {

const std::string kDigest(64, 'a');

RunEntry Done(int64_t index, int64_t attempt = 0) {
  return {.index = index,
          .item_digest = kDigest,
          .custom_id = "c \"1\"",
          .images = {{.file = RunImageName(index, 0, 2, server::ImageFormat::kPng),
                      .seed = 1,
                      .width = 2,
                      .height = 3,
                      .bytes = 4,
                      .digest = kDigest},
                     {.file = RunImageName(index, 1, 2, server::ImageFormat::kJpeg),
                      .seed = 2,
                      .width = 2,
                      .height = 3,
                      .bytes = 4,
                      .digest = kDigest}},
          .seconds = 0.5,
          .attempt = attempt};
}
RunEntry Failed(int64_t index, int64_t attempt = 0) {
  return {.index = index, .item_digest = kDigest, .error = absl::InternalError("why"), .attempt = attempt};
}
RunEntry Lost(int64_t index, int64_t attempt = 0) {
  return {.index = index, .item_digest = kDigest, .attempt = attempt, .lost = true};
}

TEST(RunJournalTest, ReadsWhatItWrites) {
  for (const RunEntry& entry : {Done(123456), Done(7, 3), Failed(0), Failed(5, 2), Lost(1999, 1)}) {
    const std::string line = JournalLine(entry);
    const std::optional<RunEntry> read = ReadJournalLine(line);
    ASSERT_TRUE(read.has_value()) << line;
    EXPECT_EQ(JournalLine(*read), line);
    EXPECT_EQ(read->state(), entry.state());
  }
  EXPECT_EQ(RunImageName(123456, 1, 2, server::ImageFormat::kWebp), "images/123/123456-1.webp");
  EXPECT_EQ(RunImageName(7, 0, 1, server::ImageFormat::kJpeg), "images/000/000007.jpg");
}

TEST(RunJournalTest, TheManifestHasNothingThatDiffersFromRunToRun) {
  RunEntry other = Done(5, 4);
  other.seconds = 7;
  EXPECT_EQ(ManifestLine(other), ManifestLine(Done(5)));
  EXPECT_NE(JournalLine(other), JournalLine(Done(5)));
}

TEST(RunJournalTest, TakesNoLineThatNamesFilesOfOthers) {
  const std::string line = JournalLine(Done(5));
  ASSERT_TRUE(ReadJournalLine(line).has_value());
  for (const char* file :
       {"images/000/000006-0.png", "images/000/000005.png", "images/000/000005-1.png", "../000/000005-0.png",
        "/etc/passwd", "images/000/000005-0.png/..", "images/000/000005-0.PNG", "images/001/000005-0.png", ""}) {
    EXPECT_FALSE(ReadJournalLine(absl::StrReplaceAll(line, {{"images/000/000005-0.png", file}})).has_value()) << file;
  }
}

TEST(RunJournalTest, TakesNoLineThatIsNone) {
  const std::string line = JournalLine(Done(5));
  for (const auto& [from, to] : {std::pair("\"index\":5", "\"index\":-5"),
                                 {"\"done\"", "\"failed\""},
                                 {"\"done\"", "\"lost\""},
                                 {"\"done\"", "\"begun\""},
                                 {"\"width\":2", "\"width\":0"},
                                 {"\"width\":2", "\"width\":1e99"},
                                 {"\"item\":\"a", "\"item\":\"A"},
                                 {"\"sha256\":\"aa", "\"sha256\":\"a"},
                                 {"\"bytes\":4", "\"bytes\":-4"},
                                 {"\"seconds\"", "\"time\""}}) {
    const std::string other = absl::StrReplaceAll(line, {{from, to}});
    ASSERT_NE(other, line) << from;
    EXPECT_FALSE(ReadJournalLine(other).has_value()) << other;
  }
  for (const char* text : {"", "[]", "{}", "{\"index\": 1", "null"}) EXPECT_FALSE(ReadJournalLine(text).has_value());
}

TEST(RunJournalTest, TheLastAttemptIsWhatHasBecomeOfAnItemInWhateverOrderLinesCome) {
  std::vector<RunEntry> lines = {Failed(5, 0), Done(5, 1), Lost(5, 1), Failed(5, 2), Done(5, 3)};
  for (size_t count = 1; count <= lines.size(); ++count) {
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; ++i) order[i] = i;
    do {
      std::map<int64_t, RunEntry> entries;
      for (const size_t i : order) AddEntry(lines[i], entries);
      ASSERT_EQ(entries.size(), 1u);
      EXPECT_EQ(JournalLine(entries.at(5)), JournalLine(lines[count - 1]));
    } while (std::ranges::next_permutation(order).found);
  }
}

}  // namespace
}  // namespace tessera::client
