#include "runtime/training/data/content_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"

namespace tessera::runtime {
namespace {

namespace fs = std::filesystem;

class ContentCacheTest : public ::testing::Test {
 protected:
  void SetUp() override { fs::remove_all(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  ContentCache Open() const {
    absl::StatusOr<ContentCache> cache = ContentCache::Open(folder_);
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }
  std::vector<fs::path> Entries() const {
    std::vector<fs::path> entries;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_)) {
      if (entry.is_regular_file()) entries.push_back(entry.path());
    }
    return entries;
  }

  const std::string folder_ = absl::StrCat(::testing::TempDir(), "/content-cache-",
                                           ::testing::UnitTest::GetInstance()->current_test_info()->name(), "/deep");
  const std::string key_ = ContentKey({"picture", "64x64"});
  const std::string bytes_ = std::string("some\0bytes", 10);
};

TEST_F(ContentCacheTest, WhatIsKeptIsFoundByEveryoneWhoOpensTheFolder) {
  EXPECT_EQ(Open().Find(key_), std::nullopt);
  ASSERT_TRUE(Open().Keep(key_, bytes_).ok());
  EXPECT_EQ(Open().Find(key_), bytes_);
  EXPECT_EQ(Open().Find(ContentKey({"another"})), std::nullopt);
  ASSERT_TRUE(Open().Keep(ContentKey({"empty"}), "").ok());
  EXPECT_EQ(Open().Find(ContentKey({"empty"})), "");
  EXPECT_EQ(Entries().size(), 2u);
}

TEST_F(ContentCacheTest, AnEntryThatIsDamagedOrCutShortAnywhereIsNoneAndCanBeWrittenAgain) {
  const ContentCache cache = Open();
  ASSERT_TRUE(cache.Keep(key_, bytes_).ok());
  const fs::path path = Entries().at(0);
  std::ifstream in(path, std::ios::binary);
  const std::string whole{std::istreambuf_iterator<char>(in), {}};
  for (size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 1);
    std::ofstream(path, std::ios::binary) << damaged;
    ASSERT_EQ(cache.Find(key_), std::nullopt) << at;
    std::ofstream(path, std::ios::binary) << whole.substr(0, at);
    ASSERT_EQ(cache.Find(key_), std::nullopt) << at;
  }
  ASSERT_TRUE(cache.Keep(key_, bytes_).ok());
  EXPECT_EQ(cache.Find(key_), bytes_);
}

TEST_F(ContentCacheTest, AnEntryUnderAnotherKeyIsNone) {
  const ContentCache cache = Open();
  ASSERT_TRUE(cache.Keep(key_, bytes_).ok());
  const std::string other = ContentKey({"other"});
  fs::create_directories(fs::path(folder_) / other.substr(0, 2));
  fs::copy_file(Entries().at(0), fs::path(folder_) / other.substr(0, 2) / other);
  EXPECT_EQ(cache.Find(other), std::nullopt);
}

TEST_F(ContentCacheTest, KeysOfDifferentListsDiffer) {
  EXPECT_NE(ContentKey({"ab", "c"}), ContentKey({"a", "bc"}));
  EXPECT_NE(ContentKey({"a"}), ContentKey({"a", ""}));
  EXPECT_EQ(ContentKey({"a"}).size(), 64u);
}

TEST_F(ContentCacheTest, WhatIsNoKeyLeadsNowhere) {
  const ContentCache cache = Open();
  EXPECT_EQ(cache.Keep("../x", bytes_).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.Find("../x"), std::nullopt);
  EXPECT_TRUE(Entries().empty());
}

TEST_F(ContentCacheTest, AFolderThatCannotBeMadeIsNamed) {
  fs::create_directories(fs::path(folder_).parent_path());
  std::ofstream(folder_) << "a file";
  const absl::Status status = ContentCache::Open(folder_).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(folder_));
}

}  // namespace
}  // namespace tessera::runtime
