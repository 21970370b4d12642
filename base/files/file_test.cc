#include "base/files/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

#include "tests/support/test_folder.h"

namespace tessera::base {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::string Bytes(const ReadOnlyFile& file, uint64_t offset, size_t count, absl::Status* status) {
  std::string bytes(count, '?');
  *status = file.Read(offset, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

TEST(ReadOnlyFileTest, AnyRangeOfTheFileIsRead) {
  const TestFolder folder;
  const absl::StatusOr<ReadOnlyFile> file = ReadOnlyFile::Open(folder.Write("a", "0123456789"), "a");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->size(), 10u);
  absl::Status status;
  EXPECT_EQ(Bytes(*file, 3, 4, &status), "3456");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(Bytes(*file, 10, 0, &status), "");
  EXPECT_TRUE(status.ok()) << status;
}

TEST(ReadOnlyFileTest, ARangePastTheEndIsAnError) {
  const TestFolder folder;
  const absl::StatusOr<ReadOnlyFile> file = ReadOnlyFile::Open(folder.Write("a", "0123"), "a");
  ASSERT_TRUE(file.ok()) << file.status();
  absl::Status status;
  Bytes(*file, 1, 4, &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  Bytes(*file, UINT64_MAX, 2, &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
}

TEST(ReadOnlyFileTest, AFileCutShortWhileOpenIsAnErrorAndNoSignal) {
  const TestFolder folder;
  const std::string path = folder.Write("a", std::string(100'000, 'x'));
  const absl::StatusOr<ReadOnlyFile> file = ReadOnlyFile::Open(path, "weights");
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path, 1000);
  absl::Status status;
  Bytes(*file, 0, 100'000, &status);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("weights ends at byte 1000"), HasSubstr("100000")));
}

TEST(ReadOnlyFileTest, AFileThatHasGoneFromItsFolderIsStillRead) {
  const TestFolder folder;
  const std::string path = folder.Write("a", "0123");
  const absl::StatusOr<ReadOnlyFile> file = ReadOnlyFile::Open(path, "a");
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::remove(path);
  absl::Status status;
  EXPECT_EQ(Bytes(*file, 0, 4, &status), "0123");
}

TEST(ReadOnlyFileTest, AMovedFileStaysOpenAndTheOldHandleClosesNothing) {
  const TestFolder folder;
  absl::StatusOr<ReadOnlyFile> first = ReadOnlyFile::Open(folder.Write("a", "first"), "a");
  absl::StatusOr<ReadOnlyFile> second = ReadOnlyFile::Open(folder.Write("b", "second"), "b");
  ASSERT_TRUE(first.ok() && second.ok());
  {
    ReadOnlyFile moved = *std::move(first);
    *second = std::move(moved);
  }
  absl::Status status;
  EXPECT_EQ(Bytes(*second, 0, 5, &status), "first");
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(second->name(), "a");
}

TEST(ReadOnlyFileTest, OnlyRegularFilesAreOpened) {
  const TestFolder folder;
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_THAT(std::string(ReadOnlyFile::Open(folder / "pipe", "x").status().message()), HasSubstr("x is a pipe"));
  EXPECT_THAT(std::string(ReadOnlyFile::Open(folder.path(), "x").status().message()), HasSubstr("x is a folder"));
  EXPECT_THAT(std::string(ReadOnlyFile::Open("/dev/null", "x").status().message()), HasSubstr("device"));
}

TEST(ReadOnlyFileTest, ASymbolicLinkIsFollowed) {
  const TestFolder folder;
  folder.Write("blobs/abc", "linked");
  std::filesystem::create_symlink("blobs/abc", folder / "a");
  const absl::StatusOr<std::string> text = ReadWholeFile(folder / "a", "a", 100);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, "linked");
}

TEST(ReadOnlyFileTest, AMissingFileIsNotFoundUnderItsDisplayName) {
  const TestFolder folder;
  const absl::Status status = ReadOnlyFile::Open(folder / "a", "vae/config.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("vae/config.json"), Not(HasSubstr(folder.path()))));
}

TEST(ReadOnlyFileTest, APathWithANulByteIsRefused) {
  EXPECT_EQ(ReadOnlyFile::Open(std::string("/dev/zero\0x", 11), "x").status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(ReadWholeFileTest, AFileOverTheLimitIsRefused) {
  const TestFolder folder;
  const std::string path = folder.Write("a", "12345");
  EXPECT_TRUE(ReadWholeFile(path, "a", 5).ok());
  EXPECT_THAT(std::string(ReadWholeFile(path, "a", 4).status().message()),
              AllOf(HasSubstr("5 bytes"), HasSubstr("at most 4")));
}

TEST(PlainFileNameTest, NamesThatLeadElsewhereAreNotPlain) {
  for (const char* name : {"", ".", "..", "/a", "a/b", "a\\b", "../a"}) EXPECT_FALSE(IsPlainFileName(name)) << name;
  EXPECT_FALSE(IsPlainFileName(std::string_view("a\0b", 3)));
  for (const char* name : {"a", "..a", "model-00001-of-00002.safetensors"}) EXPECT_TRUE(IsPlainFileName(name)) << name;
}

}  // namespace
}  // namespace tessera::base
