#include "models/weights/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/quantized/quant_rows.h"
#include "models/weights/safetensors.h"
#include "models/weights/stored_types.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr uint32_t kF32 = 0, kF16 = 1, kQ8_0 = 8, kQ4_K = 12;

absl::StatusOr<GgufHeader> Parse(const std::string& bytes) { return ParseGgufHeader(bytes, bytes.size(), "w.gguf"); }

std::string ErrorOf(const std::string& bytes) {
  const absl::Status status = Parse(bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), StartsWith("w.gguf: "));
  return std::string(status.message());
}

TEST(GgufHeaderTest, TensorsHaveTheirRowsFirst) {
  const std::string bytes = GgufBytes()
                                .Text("general.architecture", "flux")
                                .Tensor("b", {64, 2}, kQ8_0, 32)
                                .Tensor("a", {3}, kF32, 0)
                                .Tensor("c", {256, 2, 3}, kQ4_K, 192)
                                .Bytes(std::string(192 + 6 * 144, '\0'));
  const absl::StatusOr<GgufHeader> header = Parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 3u);
  const StoredTensor &a = header->tensors[0], &b = header->tensors[1], &c = header->tensors[2];
  EXPECT_EQ(a.name, "a");
  EXPECT_THAT(a.shape, ElementsAre(3));
  EXPECT_EQ(a.elements(), 3);
  EXPECT_EQ(b.type, StoredType::kQ8_0);
  EXPECT_THAT(b.shape, ElementsAre(2, 64));
  EXPECT_EQ(b.bytes(), 2u * 2 * 34);
  EXPECT_EQ(b.elements(), 128);
  EXPECT_EQ(b.begin, bytes.size() - (192 + 6 * 144) + 32);
  EXPECT_THAT(c.shape, ElementsAre(3, 2, 256));
  EXPECT_EQ(c.elements(), 3 * 2 * 256);
  EXPECT_EQ(c.end, bytes.size());
}

TEST(GgufHeaderTest, ReadsEveryTypeOfMetadata) {
  const auto number = [](uint64_t value, size_t bytes) { return GgufBytes::Number(value, bytes); };
  const std::string bytes =
      GgufBytes(2)
          .Metadata("u8", 0, number(255, 1))
          .Metadata("i8", 1, number(255, 1))
          .Metadata("u16", 2, number(65535, 2))
          .Metadata("i16", 3, number(65535, 2))
          .Metadata("u32", 4, number(0xffffffff, 4))
          .Metadata("i32", 5, number(0xffffffff, 4))
          .Metadata("f32", 6, number(0x3fc00000, 4))
          .Metadata("bool", 7, number(1, 1))
          .Metadata("text", 8, GgufBytes::Text("flux"))
          .Metadata("texts", 9, number(8, 4) + number(2, 8) + GgufBytes::Text("a") + GgufBytes::Text(""))
          .Metadata("integers", 9, number(5, 4) + number(2, 8) + number(7, 4) + number(0xffffffff, 4))
          .Metadata("floats", 9, number(6, 4) + number(1, 8) + number(0xbf800000, 4))
          .Metadata("u64", 10, number(1, 8))
          .Metadata("large", 10, number(uint64_t{1} << 63, 8))
          .Metadata("i64", 11, number(~uint64_t{0}, 8))
          .Metadata("f64", 12, number(0x3ff8000000000000, 8))
          .Bytes("");
  const absl::StatusOr<GgufHeader> header = Parse(bytes);
  ASSERT_TRUE(header.ok()) << header.status();
  const GgufMetadata expected = {{"u8", int64_t{255}},
                                 {"i8", int64_t{-1}},
                                 {"u16", int64_t{65535}},
                                 {"i16", int64_t{-1}},
                                 {"u32", int64_t{0xffffffff}},
                                 {"i32", int64_t{-1}},
                                 {"f32", 1.5},
                                 {"bool", true},
                                 {"text", std::string("flux")},
                                 {"texts", std::vector<std::string>{"a", ""}},
                                 {"integers", std::vector<int64_t>{7, -1}},
                                 {"floats", std::vector<double>{-1}},
                                 {"u64", int64_t{1}},
                                 {"large", 0x1p63},
                                 {"i64", int64_t{-1}},
                                 {"f64", 1.5}};
  EXPECT_EQ(header->metadata, expected);
}

TEST(GgufHeaderTest, RefusesMetadataThatTheFileCannotHold) {
  const auto number = [](uint64_t value, size_t bytes) { return GgufBytes::Number(value, bytes); };
  EXPECT_THAT(ErrorOf(GgufBytes().Metadata("a", 9, number(4, 4) + number(uint64_t{1} << 62, 8)).Bytes("")),
              AllOf(HasSubstr("\"a\""), HasSubstr("room for")));
  EXPECT_THAT(ErrorOf(GgufBytes().Metadata("a", 9, number(9, 4) + number(1, 8)).Bytes("")), HasSubstr("list of lists"));
  EXPECT_THAT(ErrorOf(GgufBytes().Metadata("a", 13, number(1, 8)).Bytes("")), HasSubstr("unknown type 13"));
  EXPECT_THAT(ErrorOf(GgufBytes().U32("a", 1).U32("a", 1).Bytes("")), HasSubstr("twice"));
  EXPECT_THAT(ErrorOf(GgufBytes().Metadata("a", 8, number(100, 8)).Bytes("")), HasSubstr("past the end of the file"));
  for (const uint32_t alignment : {0u, 3u, 48u, 0x80000000u}) {
    EXPECT_THAT(ErrorOf(GgufBytes().U32("general.alignment", alignment).Bytes("")), HasSubstr("powers of two"));
  }
}

TEST(GgufHeaderTest, DataBeginsAtTheAlignmentOfTheFile) {
  for (const uint32_t alignment : {8u, 32u, 256u}) {
    const std::string bytes =
        GgufBytes().U32("general.alignment", alignment).Tensor("a", {3}, kF16, 0).Bytes("abcdef", alignment);
    const absl::StatusOr<GgufHeader> header = Parse(bytes);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->tensors[0].begin, bytes.size() - 6);
  }
}

TEST(GgufHeaderTest, RefusesTensorsThatAreNotApartAndInTheFile) {
  const std::string data(64, '\0');
  EXPECT_THAT(ErrorOf(GgufBytes().Tensor("a", {16}, kF32, 0).Tensor("b", {8}, kF32, 32).Bytes(data)),
              AllOf(HasSubstr("\"a\" and \"b\""), HasSubstr("overlap by 32")));
  EXPECT_THAT(ErrorOf(GgufBytes().Tensor("a", {17}, kF32, 0).Bytes(data)), HasSubstr("past the end"));
  EXPECT_THAT(ErrorOf(GgufBytes().Tensor("a", {4}, kF32, 4).Bytes(data)), HasSubstr("multiple of the alignment"));
  EXPECT_THAT(ErrorOf(GgufBytes().Tensor("a", {4}, kF32, ~uint64_t{31}).Bytes(data)), HasSubstr("\"a\""));
  EXPECT_THAT(ErrorOf(GgufBytes().Tensor("", {4}, kF32, 0).Bytes(data)), HasSubstr("empty"));
  EXPECT_THAT(ErrorOf(GgufBytes().Tensor("a", {16, 3}, kQ8_0, 0).Bytes(data)), HasSubstr("whole blocks"));
  EXPECT_THAT(ErrorOf(GgufBytes().Tensor("a", {1, 1, 1, 1, 1}, kF32, 0).Bytes(data)), HasSubstr("5 dimensions"));
}

// A reader that has only the first bytes must ask for more of them, and not call the file broken.
TEST(GgufHeaderTest, AsksForMoreOfALongHeader) {
  const std::string bytes =
      GgufBytes().Text("a", std::string(50, 'x')).Tensor("w", {4}, kF32, 0).Bytes("0123456789abcdef");
  ASSERT_TRUE(Parse(bytes).ok());
  const uint64_t header = Parse(bytes)->bytes;
  for (uint64_t held = 0; held < header; ++held) {
    EXPECT_TRUE(absl::IsOutOfRange(ParseGgufHeader(bytes.substr(0, held), bytes.size(), "w.gguf").status())) << held;
    EXPECT_TRUE(absl::IsInvalidArgument(Parse(bytes.substr(0, held)).status())) << held;
  }
  EXPECT_TRUE(ParseGgufHeader(bytes.substr(0, header), bytes.size(), "w.gguf").ok());
}

TEST(GgufFileTest, ReadsLongHeadersAndBytesOfTensors) {
  const TestFolder folder;
  // More than the first read holds.
  const std::string bytes = GgufBytes()
                                .Text("long", std::string(5'000'000, 'x'))
                                .Text("general.architecture", "sd3")
                                .Tensor("w", {4}, kF32, 0)
                                .Bytes("0123456789abcdef");
  const absl::StatusOr<GgufFile> file = GgufFile::Open(folder.Write("w.gguf", bytes), "w.gguf");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(*file->Metadata<std::string>("general.architecture"), "sd3");
  EXPECT_EQ(file->Metadata<int64_t>("general.architecture"), nullptr);
  EXPECT_EQ(file->Metadata<std::string>("other"), nullptr);
  EXPECT_EQ(file->header_digest().size(), 64u);
  const StoredTensor* tensor = file->Find("w");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(file->Find("v"), nullptr);
  std::string read(5, ' ');
  ASSERT_TRUE(file->Read(*tensor, 10, std::as_writable_bytes(std::span(read))).ok());
  EXPECT_EQ(read, "abcde");
  EXPECT_TRUE(absl::IsOutOfRange(file->Read(*tensor, 12, std::as_writable_bytes(std::span(read)))));
}

struct RefusedFile {
  const char* file;
  absl::StatusCode code;
  const char* named;
};
constexpr absl::StatusCode kBroken = absl::StatusCode::kInvalidArgument, kUnread = absl::StatusCode::kUnimplemented;
constexpr RefusedFile kRefused[] = {
    {"gguf_truncated", kBroken, "gguf_truncated.gguf"},
    {"gguf_truncated_header", kBroken, "gguf_truncated_header.gguf"},
    {"gguf_split", kBroken, "split.count"},
    {"gguf_block", kBroken, "img_in.weight"},
    {"gguf_block_k", kBroken, "img_in.weight"},
    {"gguf_type", kUnread, "type 99, which is unknown"},
    {"gguf_type_removed", kUnread, "type 4 (Q4_2), which was removed"},
    {"gguf_type_iq1", kUnread, "IQ1_S"},
    {"gguf_version", kBroken, "version 1"},
    {"gguf_version_future", kBroken, "version 9"},
    {"gguf_big_endian", kBroken, "big-endian"},
    {"gguf_offset_outside", kBroken, "img_in.weight"},
    {"gguf_offset_unaligned", kBroken, "img_in.weight"},
    {"gguf_count", kBroken, "gguf_count.gguf"},
    {"gguf_size_overflow", kBroken, "img_in.weight"},
    {"gguf_dimensions", kBroken, "img_in.weight"},
    {"gguf_string", kBroken, "gguf_string.gguf"},
    {"gguf_alignment", kBroken, "general.alignment"},
    {"gguf_duplicate", kBroken, "img_in.bias"},
};

TEST(GgufFileTest, RefusesBrokenFilesByName) {
  for (const RefusedFile& refused : kRefused) {
    const std::string name = std::string(refused.file) + ".gguf";
    const absl::Status status = GgufFile::Open("tests/golden-files/refused/flux_tiny/" + name, name).status();
    EXPECT_EQ(status.code(), refused.code) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(StartsWith(name + ": "), HasSubstr(refused.named)));
  }
}

// blocks.gguf holds four rows of random bytes of every type; blocks.safetensors has their values.
TEST(GgufBlocksTest, HaveTheValuesOfTheirDefinition) {
  const std::string folder = "tests/golden-files/blocks/";
  const absl::StatusOr<GgufFile> file = GgufFile::Open(folder + "blocks.gguf", "blocks.gguf");
  const absl::StatusOr<SafetensorsFile> gold =
      SafetensorsFile::Open(folder + "blocks.safetensors", "blocks.safetensors");
  ASSERT_TRUE(file.ok() && gold.ok()) << file.status() << gold.status();
  int types = 0;
  for (const StoredTensor& tensor : file->tensors()) {
    const std::optional<kernels::QuantType> type = QuantTypeOf(tensor.type);
    if (!type) {  // F32, F16 and BF16, which are no blocks
      EXPECT_NE(StoredTypeSize(tensor.type), 0) << tensor.name;
      continue;
    }
    const std::string name(kernels::QuantTypeName(*type));
    EXPECT_EQ(tensor.name, name + ".weight");
    const StoredTensor *bytes_gold = gold->Find("bytes." + name), *values_gold = gold->Find("values." + name);
    ASSERT_TRUE(bytes_gold != nullptr && values_gold != nullptr) << name;
    std::vector<std::byte> bytes(tensor.bytes()), expected_bytes(bytes_gold->bytes());
    std::vector<float> values(static_cast<size_t>(tensor.elements())), expected(values.size());
    ASSERT_EQ(values_gold->elements(), tensor.elements()) << name;
    ASSERT_TRUE(file->Read(tensor, 0, bytes).ok());
    ASSERT_TRUE(gold->Read(*bytes_gold, 0, expected_bytes).ok());
    ASSERT_TRUE(gold->Read(*values_gold, 0, std::as_writable_bytes(std::span(expected))).ok());
    EXPECT_EQ(bytes, expected_bytes) << name;
    ASSERT_EQ(tensor.shape.size(), 2u);
    const int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    const kernels::QuantRows view{
        .type = *type, .bytes = bytes.data(), .row_bytes = kernels::RowBytes(*type, columns), .columns = columns};
    for (int64_t row = 0; row < rows; ++row) {
      kernels::ReferenceWiden(kernels::RunOf(view, row, 0, columns), values.data() + row * columns);
    }
    EXPECT_EQ(std::memcmp(values.data(), expected.data(), values.size() * sizeof(float)), 0) << name;
    ++types;
  }
  EXPECT_EQ(types, 12);
}

TEST(Fp8CodesTest, HaveTheValuesOfTheirDefinition) {
  const absl::StatusOr<SafetensorsFile> gold =
      SafetensorsFile::Open("tests/golden-files/blocks/fp8.safetensors", "fp8.safetensors");
  ASSERT_TRUE(gold.ok()) << gold.status();
  std::vector<uint8_t> codes(256);
  for (size_t i = 0; i < 256; ++i) codes[i] = static_cast<uint8_t>(i);
  const float one = 1;
  for (const auto& [name, type] :
       {std::pair("e4m3fn", kernels::QuantType::kF8E4M3), {"e5m2", kernels::QuantType::kF8E5M2}}) {
    const StoredTensor* values_gold = gold->Find(std::string(name) + ".values");
    const StoredTensor* class_gold = gold->Find(std::string(name) + ".class");
    ASSERT_TRUE(values_gold != nullptr && class_gold != nullptr) << name;
    std::vector<float> values(256), expected(256);
    std::vector<std::byte> classes(class_gold->bytes());
    ASSERT_TRUE(gold->Read(*values_gold, 0, std::as_writable_bytes(std::span(expected))).ok());
    ASSERT_TRUE(gold->Read(*class_gold, 0, classes).ok());
    kernels::ReferenceWiden({.type = type, .bytes = codes.data(), .count = 256, .scales = &one}, values.data());
    const size_t step = classes.size() / 256;
    for (size_t i = 0; i < 256; ++i) {
      const int kind = static_cast<int>(classes[step * i]);
      EXPECT_EQ(std::isinf(values[i]), kind == 1) << name << " " << i;
      EXPECT_EQ(std::isnan(values[i]), kind == 2) << name << " " << i;
      EXPECT_TRUE(kind != 0 || std::memcmp(&values[i], &expected[i], sizeof(float)) == 0) << name << " " << i;
    }
  }
}

}  // namespace
}  // namespace tessera::models
