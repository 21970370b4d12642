#include "client/cli/batch/run_sheet.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "absl/strings/escaping.h"
#include "base/files/sha256.h"
#include "server/image/image_file.h"
#include "tests/support/test_folder.h"

namespace tessera::client {
namespace {

using ::testing::HasSubstr;

class RunSheetTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto run = RunFolder::Open(folder_ / "run", {}, {});
    ASSERT_TRUE(run.ok()) << run.status();
    run_ = *std::move(run);
  }

  // Returns an item whose image has a single colour that depends on its index.
  RunEntry Done(int64_t index) {
    control::Frames image = {.width = 2, .height = 2, .bytes = std::vector<uint8_t>(12, ColourOf(index))};
    const absl::StatusOr<std::string> bytes = server::EncodeImage(image, server::ImageFormat::kPng, {});
    EXPECT_TRUE(bytes.ok());
    const std::string file = RunImageName(index, 0, 1, server::ImageFormat::kPng);
    folder_.Write("run/" + file, *bytes);
    return {.index = index,
            .images = {{.file = file,
                        .width = 2,
                        .height = 2,
                        .bytes = bytes->size(),
                        .digest = absl::BytesToHexString(base::Sha256Of(*bytes))}}};
  }
  static uint8_t ColourOf(int64_t index) { return static_cast<uint8_t>(50 + index % 200); }

  control::Frames Read(const std::string& name) {
    std::ifstream file(folder_ / name, std::ios::binary);
    const auto decoded = server::DecodeImage(std::string(std::istreambuf_iterator<char>(file), {}));
    EXPECT_TRUE(decoded.ok()) << name << ": " << decoded.status();
    return decoded.ok() ? decoded->image : control::Frames();
  }
  static int ColourIn(const control::Frames& sheet, size_t cell) {
    const size_t x = cell % 16 * 128 + 62, y = cell / 16 * 128 + 62;
    return sheet.bytes[3 * (y * static_cast<size_t>(sheet.width) + x)];
  }

  TestFolder folder_;
  std::unique_ptr<RunFolder> run_;
};

TEST_F(RunSheetTest, ThatDoesNotHoldAllImagesIsFollowedByMore) {
  std::map<int64_t, RunEntry> entries;
  for (int64_t index = 0; index < 300; ++index) entries[index] = Done(index);
  entries[7] = {.index = 7, .error = absl::InternalError("why")};
  const auto sheets = WriteContactSheets(folder_ / "sheets/all.png", *run_, entries);
  ASSERT_TRUE(sheets.ok()) << sheets.status();
  EXPECT_EQ(*sheets, 2);
  const control::Frames first = Read("sheets/all-001.png"), second = Read("sheets/all-002.png");
  EXPECT_EQ(first.height, 16 * 128);
  EXPECT_EQ(second.height, 3 * 128);
  for (int i = 0; i < 256; ++i) EXPECT_EQ(ColourIn(first, i), i == 7 ? 96 : ColourOf(i)) << i;
  for (int i = 256; i < 300; ++i) EXPECT_EQ(ColourIn(second, i - 256), ColourOf(i)) << i;
  EXPECT_FALSE(std::filesystem::exists(folder_ / "sheets/all.png"));
}

TEST_F(RunSheetTest, OfAnImageThatIsNotWhatWasWrittenIsNotDrawn) {
  std::map<int64_t, RunEntry> entries = {{0, Done(0)}, {1, Done(1)}};
  folder_.Write("run/images/000/000001.png", "no picture");
  const absl::Status status = WriteContactSheets(folder_ / "all.png", *run_, entries).status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("images/000/000001.png\" was changed after the run wrote it"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "all.png"));
}

}  // namespace
}  // namespace tessera::client
