#include "client/cli/pull/blob_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/files/file.h"
#include "tests/support/test_folder.h"

namespace tessera::client {
namespace {

constexpr uint64_t kPiece = BlobFile::kPieceBytes;

class BlobFileTest : public ::testing::Test {
 protected:
  BlobFile Open(uint64_t size) {
    absl::StatusOr<BlobFile> blob = BlobFile::Open(folder_.path(), "name", size);
    EXPECT_TRUE(blob.ok()) << blob.status();
    return *std::move(blob);
  }

  std::string Bytes(const std::string& name) { return base::ReadSmallFile(folder_ / name, 1000).value_or(""); }

  TestFolder folder_;
};

TEST_F(BlobFileTest, ContinuesAtTheByteOfEachPieceWhereAnEarlierRunEnded) {
  {
    BlobFile blob = Open(2 * kPiece + 5);
    ASSERT_EQ(blob.pieces(), 3u);
    ASSERT_TRUE(blob.Write(0, "abc").ok());
    ASSERT_TRUE(blob.Write(kPiece, "de").ok());
    ASSERT_TRUE(blob.Write(2 * kPiece, "fghij").ok());
  }
  BlobFile blob = Open(2 * kPiece + 5);
  EXPECT_EQ(blob.Next(0), 3u);
  EXPECT_EQ(blob.Next(1), kPiece + 2);
  EXPECT_EQ(blob.Next(2), blob.End(2));
  EXPECT_EQ(blob.Present(), 10u);
  EXPECT_EQ(blob.Frontier(), 3u);
  std::string read(5, ' ');
  ASSERT_TRUE(blob.Read(2 * kPiece, read).ok());
  EXPECT_EQ(read, "fghij");
}

TEST_F(BlobFileTest, CountsBytesThatReachIntoTheNextPiece) {
  BlobFile blob = Open(kPiece + 10);
  ASSERT_TRUE(blob.Write(0, std::string(kPiece + 4, 'x')).ok());
  EXPECT_EQ(blob.Next(0), kPiece);
  EXPECT_EQ(blob.Next(1), kPiece + 4);
  EXPECT_EQ(blob.Frontier(), kPiece + 4);
}

TEST_F(BlobFileTest, ForgetsARecordThatDoesNotFitTheFile) {
  ASSERT_TRUE(Open(8).Write(0, "abc").ok());
  EXPECT_EQ(Open(9).Present(), 0u) << "the blob has another size";
  ASSERT_TRUE(Open(9).Write(0, "abc").ok());
  std::filesystem::resize_file(folder_ / "name.tessera.incomplete", 4);
  EXPECT_EQ(Open(9).Present(), 0u) << "the file of bytes is shorter";
  // A record that claims more bytes than the piece has.
  ASSERT_TRUE(Open(9).Write(0, "abc").ok());
  std::string record = Bytes("name.tessera.progress");
  ASSERT_EQ(record.size(), 20u);
  record[16] = 10;
  folder_.Write("name.tessera.progress", record);
  EXPECT_EQ(Open(9).Present(), 0u);
  folder_.Write("name.tessera.progress", "no record");
  EXPECT_EQ(Open(9).Present(), 0u);
}

TEST_F(BlobFileTest, FollowsNoLink) {
  folder_.Write("elsewhere", "kept");
  std::filesystem::create_symlink(folder_ / "elsewhere", folder_ / "name.tessera.incomplete");
  EXPECT_FALSE(BlobFile::Open(folder_.path(), "name", 3).ok());
  EXPECT_EQ(Bytes("elsewhere"), "kept");
}

TEST_F(BlobFileTest, ACommittedBlobIsAllThatRemains) {
  BlobFile blob = Open(3);
  ASSERT_TRUE(blob.Write(0, "abc").ok());
  ASSERT_TRUE(blob.Commit("final").ok());
  EXPECT_EQ(Bytes("final"), "abc");
  EXPECT_FALSE(std::filesystem::exists(folder_ / "name.tessera.progress"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "name.tessera.incomplete"));
}

}  // namespace
}  // namespace tessera::client
