#include "server/adapters/adapter_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <vector>

#include "absl/strings/escaping.h"
#include "base/files/sha256.h"
#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

constexpr char kTwoTensors[] =
    R"({"__metadata__": {"rank": "4"}, "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}, )"
    R"("a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";

TEST(AdapterFileTest, IsKnownByItsDigestAndSize) {
  const TestFolder folder;
  const std::string bytes = SafetensorsBytes(kTwoTensors, "12345678");
  const absl::StatusOr<AdapterFile> file = CheckAdapterFile(folder.Write("a.safetensors", bytes), "adapter 'a'");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->digest, absl::BytesToHexString(base::Sha256Of(bytes)));
  EXPECT_EQ(file->bytes, bytes.size());
}

// Copies into a store in the folder `copies`.
absl::StatusOr<Content> Copy(const TestFolder& folder, const std::string& path, const std::string& name) {
  const auto contents = *ContentStore::Open({.own_folder = folder / "copies"});
  absl::StatusOr<ContentWriter> writer = contents->Begin(ContentOwner::Server(), kMaxAdapterBytes);
  if (!writer.ok()) return writer.status();
  if (absl::Status copied = CopyAdapterFile(path, name, *writer); !copied.ok()) return copied;
  return writer->Commit();
}

TEST(AdapterFileTest, ACopyHasTheSameBytesAndIsItsOwnersAlone) {
  const TestFolder folder;
  const std::string bytes = SafetensorsBytes(kTwoTensors, "12345678");
  const std::string path = folder.Write("a.safetensors", bytes);
  const absl::StatusOr<Content> copied = Copy(folder, path, "adapter 'a'");
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(copied->digest, CheckAdapterFile(copied->path, "the copy")->digest);
  EXPECT_EQ(std::filesystem::status(copied->path).permissions(), std::filesystem::perms::owner_read);
}

// Each case differs from a valid file in the one property that its message names.
TEST(AdapterFileTest, WhatIsNoWholeSafetensorsFileIsRefusedByNameAndNotCopied) {
  struct Case {
    std::string bytes, message;
  };
  const std::string whole = SafetensorsBytes(kTwoTensors, "12345678");
  const auto header = [](const std::string& text, const std::string& data = "12345678") {
    return SafetensorsBytes(text, data);
  };
  const std::vector<Case> cases = {
      {"", "has only 0 bytes"},
      {"12345678", "has only 8 bytes"},
      {std::string(64, '\xff'), "it declares a header of"},
      {whole.substr(0, whole.size() - 1), "it may have been cut short"},
      {whole + "x", "describes 8 bytes of tensors and the file has 9"},
      {header("{\"a\": "), "its header"},
      {header("[]"), "its header is not a JSON object"},
      {header("{}", ""), "it holds no tensors"},
      {header(R"({"__metadata__": {}})"), "it holds no tensors"},
      {header(R"({"a": 1})"), "tensor \"a\" has no valid data_offsets"},
      {header(R"({"a": {"data_offsets": [8, 0]}})"), "tensor \"a\" has no valid data_offsets"},
      {header(R"({"a": {"data_offsets": [0, 4]}, "b": {"data_offsets": [0, 8]}})"), "have a gap or overlap at byte "},
      {header(R"({"a": {"data_offsets": [0, 2]}, "b": {"data_offsets": [4, 8]}})"), "have a gap or overlap at byte "},
      {"version https://git-lfs.github.com/spec/v1\n", "it declares a header of"},
  };
  for (const Case& one : cases) {
    const TestFolder folder;
    const std::string path = folder.Write("a.safetensors", one.bytes);
    const absl::Status refused = Copy(folder, path, "adapter 'a'").status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument) << one.message;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(one.message));
    EXPECT_THAT(std::string(refused.message()), HasSubstr("adapter 'a'"));
    EXPECT_EQ(CheckAdapterFile(path, "adapter 'a'").status(), refused);
    EXPECT_TRUE(std::filesystem::is_empty(folder / "copies"));
  }
}

TEST(AdapterFileTest, AFolderOfPeftIsKnownByBothItsFilesAndCopiedWhole) {
  const TestFolder folder;
  const std::string tensors = SafetensorsBytes(kTwoTensors, "12345678"), config = "{\"r\": 4}";
  const std::string path = folder.Write("style/adapter_model.safetensors", tensors);
  const AdapterFile without_config = *CheckAdapterFile(folder / "style", "adapter 'style'");
  EXPECT_EQ(without_config.digest, absl::BytesToHexString(base::Sha256Of(tensors)));
  folder.Write("style/adapter_config.json", config);
  EXPECT_TRUE(IsAdapterFolder(folder / "style"));
  EXPECT_FALSE(IsAdapterFolder(folder.path()));
  const absl::StatusOr<AdapterFile> file = CheckAdapterFile(folder / "style", "adapter 'style'");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->digest, absl::BytesToHexString(base::Sha256Of(tensors + config)));
  EXPECT_EQ(file->bytes, tensors.size() + config.size());
  EXPECT_EQ(*CheckAdapterFile(path, "adapter 'style'"), *file) << "its tensors' file means the folder";
  const absl::StatusOr<Content> copied = Copy(folder, folder / "style", "adapter 'style'");
  ASSERT_TRUE(copied.ok()) << copied.status();
  EXPECT_EQ(*CheckAdapterFile(copied->path, "the copy"), *file);
  std::filesystem::remove_all(folder / "copies");
  folder.Write("style/adapter_model.safetensors", "broken");
  EXPECT_FALSE(Copy(folder, folder / "style", "adapter 'style'").ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder / "copies"));
}

TEST(AdapterFileTest, WhatIsNoFileIsRefused) {
  const TestFolder folder;
  EXPECT_EQ(CheckAdapterFile(folder / "none", "adapter 'a'").status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(CheckAdapterFile(folder.path(), "adapter 'a'").ok());
}

}  // namespace
}  // namespace tessera::server
