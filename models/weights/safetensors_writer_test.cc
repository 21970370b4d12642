#include "models/weights/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/files/sha256.h"
#include "models/weights/stored_types.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using testing::HasSubstr;

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(SafetensorsWriterTest, TheFileIsByteForByteTheFormats) {
  TestFolder folder;
  auto writer = SafetensorsWriter::Create(
      folder / "a.safetensors",
      {{"x", StoredType::kI32, {2, 1}}, {"empty", StoredType::kF32, {0, 3}}, {"y", StoredType::kU8, {}}},
      {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->Append("x", Bytes("abc")).ok());
  ASSERT_TRUE(writer->Append("x", Bytes("defgh")).ok());
  ASSERT_TRUE(writer->Append("y", Bytes("z")).ok());
  EXPECT_FALSE(std::filesystem::exists(folder / "a.safetensors"));
  const auto written = writer->Finish();
  ASSERT_TRUE(written.ok()) << written.status();

  std::string header =
      R"({"__metadata__":{"format":"pt"},"x":{"dtype":"I32","shape":[2,1],"data_offsets":[0,8]},)"
      R"("empty":{"dtype":"F32","shape":[0,3],"data_offsets":[8,8]},"y":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})";
  while (header.size() % 8 != 0) header += ' ';
  const std::string expected =
      std::string(1, static_cast<char>(header.size())) + std::string(7, '\0') + header + "abcdefghz";
  EXPECT_EQ(Content(folder / "a.safetensors"), expected);
  EXPECT_EQ(written->bytes, expected.size());
  base::Sha256 digest;
  digest.Update(expected);
  EXPECT_EQ(written->sha256, digest.Finish());
}

TEST(SafetensorsWriterTest, TheReaderFindsWhatWasWritten) {
  TestFolder folder;
  const std::string name = "quote\" \n…", value = "a \\ b\x01";
  auto writer = SafetensorsWriter::Create(folder / "a.safetensors", {{name, StoredType::kBF16, {3}}}, {{name, value}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE(writer->Append(name, Bytes("123456")).ok());
  ASSERT_TRUE(writer->Finish().ok());
  const auto file = SafetensorsFile::Open(folder / "a.safetensors", "a");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->metadata().at(name), value);
  const StoredTensor* tensor = file->Find(name);
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->shape, std::vector<int64_t>{3});
  std::string bytes(6, '\0');
  ASSERT_TRUE(file->Read(*tensor, 0, std::as_writable_bytes(std::span(bytes))).ok());
  EXPECT_EQ(bytes, "123456");
}

TEST(StoredTypesTest, EveryTypeIsFoundByItsName) {
  for (const StoredType type : kStoredTypes) EXPECT_EQ(StoredTypeOf(StoredTypeName(type)), type);
  EXPECT_EQ(std::size(kStoredTypes), static_cast<size_t>(StoredType::kF8E5M2) + 1);
  EXPECT_EQ(StoredTypeOf("f32"), std::nullopt);
}

TEST(SafetensorsWriterTest, AMistakeOfOrderOrSizeLeavesNoFile) {
  TestFolder folder;
  const auto create = [&] {
    return *SafetensorsWriter::Create(folder / "a.safetensors",
                                      {{"x", StoredType::kU8, {2}}, {"y", StoredType::kU8, {2}}}, {});
  };
  {
    SafetensorsWriter writer = create();
    EXPECT_THAT(writer.Append("y", Bytes("ab")).message(),
                HasSubstr("tensor \"y\" is written out of order; the next is \"x\""));
    EXPECT_THAT(writer.Append("x", Bytes("abc")).message(), HasSubstr("needs 2 more bytes and is given 3"));
    ASSERT_TRUE(writer.Append("x", Bytes("ab")).ok());
    ASSERT_TRUE(writer.Append("y", Bytes("a")).ok());
    EXPECT_EQ(writer.Finish().status().message(), "tensor \"y\" lacks 1 bytes");
  }
  {
    SafetensorsWriter writer = create();
    ASSERT_TRUE(writer.Append("x", Bytes("ab")).ok());
    ASSERT_TRUE(writer.Append("y", Bytes("ab")).ok());
    EXPECT_THAT(writer.Append("y", Bytes("c")).message(), HasSubstr("out of order; the next is none"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(SafetensorsWriterTest, WhatNoReaderWouldTakeIsRefusedByName) {
  TestFolder folder;
  const auto message = [&](std::vector<TensorEntry> tensors) {
    return std::string(SafetensorsWriter::Create(folder / "a", std::move(tensors), {}).status().message());
  };
  EXPECT_THAT(message({{"x", StoredType::kU8, {1}}, {"x", StoredType::kU8, {1}}}), HasSubstr("\"x\" is given twice"));
  EXPECT_THAT(message({{"__metadata__", StoredType::kU8, {1}}}), HasSubstr("reserved name"));
  EXPECT_THAT(message({{"x", StoredType::kU8, {-1}}}), HasSubstr("the shape is [-1]"));
  EXPECT_THAT(message({{"x", StoredType::kF32, {int64_t{1} << 62}}}), HasSubstr("more than 2^63 - 1 bytes"));
  EXPECT_THAT(message({{"x", StoredType::kU8, {int64_t{1} << 62}}, {"y", StoredType::kU8, {int64_t{1} << 62}}}),
              HasSubstr("with tensor \"y\" it has more"));
}

TEST(SafetensorsWriterTest, AFileThatMayNotGrowFurtherIsAnErrorThatNamesItAndLeavesTheOldOne) {
  TestFolder folder;
  folder.Write("a.safetensors", "old");
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  auto writer = SafetensorsWriter::Create(folder / "a.safetensors", {{"x", StoredType::kU8, {9000}}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  const rlimit limit = {.rlim_cur = 4096, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  const absl::Status status = writer->Append("x", Bytes(std::string(9000, 'x')));
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr("a.safetensors"));
  EXPECT_EQ(Content(folder / "a.safetensors"), "old");
}

}  // namespace
}  // namespace tessera::models
