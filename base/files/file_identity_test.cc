#include "base/files/file_identity.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

namespace fs = std::filesystem;

class FolderIdentityTest : public ::testing::Test {
 protected:
  FolderIdentityTest() {
    folder_.Write("model_index.json", "{}");
    folder_.Write("transformer/weights.safetensors", "one");
  }
  std::string Identity() const { return FolderIdentity(folder_.path()); }

  const TestFolder folder_;
};

TEST_F(FolderIdentityTest, IsTheSameUntilAFileIsReplacedWrittenAddedOrRemoved) {
  std::string before = Identity();
  EXPECT_EQ(before.size(), 64u);
  EXPECT_EQ(Identity(), before);
  const auto changed = [&] { return Identity() != std::exchange(before, Identity()); };

  folder_.Write("transformer/new", "one");
  EXPECT_TRUE(changed()) << "a file was added";
  fs::rename(folder_ / "transformer/new", folder_ / "transformer/weights.safetensors");
  EXPECT_TRUE(changed()) << "a file of the same bytes took the place of another one";
  folder_.Write("model_index.json", "[]");
  EXPECT_TRUE(changed()) << "a file was written in its place, with as many bytes";
  fs::remove(folder_ / "transformer/weights.safetensors");
  EXPECT_TRUE(changed()) << "a file was removed";
}

// The folders that download programs create have such links.
TEST_F(FolderIdentityTest, FollowsLinksToFiles) {
  folder_.Write(".blobs/a", "1");
  folder_.Write(".blobs/b", "2");
  const std::string link = folder_ / "transformer/link";
  fs::create_symlink(folder_ / ".blobs/a", link);
  const std::string before = Identity();
  fs::remove(link);
  fs::create_symlink(folder_ / ".blobs/b", link);
  EXPECT_NE(Identity(), before);
}

TEST_F(FolderIdentityTest, LeavesHiddenFilesOut) {
  const std::string before = Identity();
  folder_.Write(".cache/lock", "1");
  EXPECT_EQ(Identity(), before);
}

TEST_F(FolderIdentityTest, FoldersThatAreNotThereAreAlike) {
  EXPECT_EQ(FolderIdentity(folder_ / "none"), FolderIdentity(folder_ / "neither"));
  EXPECT_NE(FolderIdentity(folder_ / "none"), Identity());
}

}  // namespace
}  // namespace tessera::base
