#include "base/files/private_files.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

namespace fs = std::filesystem;

// Sets the umask during its lifetime.
class Umask {
 public:
  explicit Umask(mode_t mask) : before_(umask(mask)) {}
  ~Umask() { umask(before_); }

 private:
  const mode_t before_;
};

int ModeOf(const std::string& path) {
  struct stat about = {};
  EXPECT_EQ(stat(path.c_str(), &about), 0) << path;
  return about.st_mode & 07777;
}

void SetMode(const std::string& path, int mode) { fs::permissions(path, static_cast<fs::perms>(mode)); }

TEST(PrivateFiles, AreTheirOwnersAloneWhateverTheUmask) {
  for (const mode_t mask : {0000, 0022, 0077, 0777}) {
    TestFolder folder;
    const Umask umask(mask);
    ASSERT_TRUE(MakePrivateFolder(folder / "data").ok()) << mask;
    ASSERT_TRUE(MakePrivateFile(folder / "data/file").ok()) << mask;
    EXPECT_EQ(ModeOf(folder / "data"), 0700) << mask;
    EXPECT_EQ(ModeOf(folder / "data/file"), 0600) << mask;
  }
}

TEST(PrivateFiles, ThatAreThereStayAsTheyAre) {
  TestFolder folder;
  folder.Write("data/file", "bytes");
  SetMode(folder / "data", 0755);
  SetMode(folder / "data/file", 0644);
  EXPECT_TRUE(MakePrivateFolder(folder / "data/").ok());
  EXPECT_TRUE(MakePrivateFile(folder / "data/file").ok());
  EXPECT_EQ(ModeOf(folder / "data"), 0755);
  EXPECT_EQ(ModeOf(folder / "data/file"), 0644);
  EXPECT_EQ(fs::file_size(folder / "data/file"), 5u);
  EXPECT_EQ(MakePrivateFolder(folder / "data/file").code(), absl::StatusCode::kUnavailable) << "no folder";
}

TEST(PrivateFiles, FoldersAboveThatAreMissingAreMadeAlike) {
  TestFolder folder;
  const Umask umask(0022);
  ASSERT_TRUE(MakePrivateFolder(folder / "a/b/data/").ok());
  EXPECT_EQ(ModeOf(folder / "a"), 0700);
  EXPECT_EQ(ModeOf(folder / "a/b"), 0700);
  EXPECT_EQ(ModeOf(folder / "a/b/data"), 0700);
}

TEST(PrivateFiles, ADataFolderIsReadByWhomItsModesLetIn) {
  TestFolder folder;
  const std::string data = folder / "data";
  EXPECT_EQ(ReadersOfDataFolder(data), Readers::kOwner) << "there is none";
  folder.Write("data/jobs.sqlite", "");
  fs::create_directory(data + "/images");
  const auto readers = [&](int of_folder, int of_database, int of_images) {
    SetMode(data, of_folder);
    SetMode(data + "/jobs.sqlite", of_database);
    SetMode(data + "/images", of_images);
    return ReadersOfDataFolder(data);
  };
  EXPECT_EQ(readers(0755, 0644, 0755), Readers::kEveryone) << "as made before";
  EXPECT_EQ(readers(0700, 0644, 0755), Readers::kOwner);
  EXPECT_EQ(readers(0755, 0600, 0700), Readers::kOwner) << "a folder of the operator's, with files of the server's";
  EXPECT_EQ(readers(0755, 0600, 0755), Readers::kEveryone) << "pictures alone";
  EXPECT_EQ(readers(0755, 0644, 0700), Readers::kEveryone) << "prompts alone";
  EXPECT_EQ(readers(0750, 0640, 0700), Readers::kGroup);
  EXPECT_EQ(readers(0750, 0644, 0755), Readers::kGroup) << "nobody else comes so far";
}

}  // namespace
}  // namespace tessera::base
