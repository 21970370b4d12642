#include "models/weights/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/safetensors_bytes.h"
#include "tests/support/test_folder.h"

namespace tessera::models {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::StartsWith;

absl::StatusOr<SafetensorsHeader> Parse(const std::string& header, uint64_t data_bytes) {
  return ParseSafetensorsHeader(header, 8 + header.size() + data_bytes, "vae/model.safetensors");
}

std::string ErrorOf(const std::string& header, uint64_t data_bytes) {
  const absl::Status status = Parse(header, data_bytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << header;
  EXPECT_THAT(std::string(status.message()), StartsWith("vae/model.safetensors: "));
  return std::string(status.message());
}

// Returns the error for one tensor "w" with the given fields in a file with that many bytes of data.
std::string TensorError(const std::string& dtype, const std::string& shape, const std::string& offsets,
                        uint64_t data_bytes) {
  std::string error = ErrorOf(
      "{\"w\": {\"dtype\": " + dtype + ", \"shape\": " + shape + ", \"data_offsets\": " + offsets + "}}", data_bytes);
  EXPECT_THAT(error, HasSubstr("tensor \"w\""));
  return error;
}

std::string LengthError(const std::string& prefix, uint64_t file_size) {
  const absl::Status status = ParseSafetensorsHeaderLength(prefix, file_size, "w.safetensors").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), StartsWith("w.safetensors: "));
  return std::string(status.message());
}

TEST(SafetensorsHeaderTest, TensorsAreListedInTheOrderOfTheirBytes) {
  const std::string text =
      R"({"__metadata__": {"format": "pt"}, "b": {"dtype": "BF16", "shape": [2, 3], "data_offsets": [8, 20]},)"
      R"( "a": {"dtype": "I64", "shape": [], "data_offsets": [0, 8]}})";
  const absl::StatusOr<SafetensorsHeader> header = Parse(text, 20);
  ASSERT_TRUE(header.ok()) << header.status();
  ASSERT_EQ(header->tensors.size(), 2u);
  const StoredTensor &a = header->tensors[0], &b = header->tensors[1];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.type, StoredType::kI64);
  EXPECT_THAT(a.shape, IsEmpty());
  EXPECT_EQ(a.elements(), 1);
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.type, StoredType::kBF16);
  EXPECT_THAT(b.shape, ElementsAre(2, 3));
  EXPECT_EQ(b.elements(), 6);
  EXPECT_EQ(b.begin, 8 + text.size() + 8);
  EXPECT_EQ(b.end, 8 + text.size() + 20);
  EXPECT_THAT(header->metadata, ElementsAre(Pair("format", "pt")));
}

TEST(SafetensorsHeaderTest, EmptyTensorsAndTrailingBlanksAreValid) {
  const absl::StatusOr<SafetensorsHeader> header =
      Parse(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},)"
            R"( "e": {"dtype": "F32", "shape": [0, 7], "data_offsets": [4, 4]}}     )",
            4);
  ASSERT_TRUE(header.ok()) << header.status();
  EXPECT_EQ(header->tensors[1].bytes(), 0u);
  EXPECT_EQ(header->tensors[1].elements(), 0);
}

TEST(SafetensorsHeaderTest, AHeaderWithoutTensorsIsValid) { EXPECT_TRUE(Parse("{}", 0).ok()); }

TEST(SafetensorsHeaderTest, EveryTypeHasItsNameAndSize) {
  const std::vector<std::pair<std::string, int64_t>> types = {
      {"F64", 8}, {"F32", 4}, {"F16", 2}, {"BF16", 2}, {"I64", 8},  {"I32", 4},     {"I16", 2},    {"I8", 1},
      {"U64", 8}, {"U32", 4}, {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};
  for (const auto& [name, size] : types) {
    const std::string end = std::to_string(3 * size);
    const absl::StatusOr<SafetensorsHeader> header =
        Parse("{\"w\": {\"dtype\": \"" + name + "\", \"shape\": [3], \"data_offsets\": [0, " + end + "]}}", 3 * size);
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(StoredTypeName(header->tensors[0].type), name);
    EXPECT_EQ(StoredTypeSize(header->tensors[0].type), size);
  }
}

TEST(SafetensorsHeaderTest, TheLengthIsLittleEndianAndCheckedAgainstTheFile) {
  const absl::StatusOr<uint64_t> length = ParseSafetensorsHeaderLength(std::string("\2\1\0\0\0\0\0\0", 8), 266, "w");
  ASSERT_TRUE(length.ok()) << length.status();
  EXPECT_EQ(*length, 258u);
  EXPECT_THAT(LengthError(std::string("\2\1\0\0\0\0\0\0", 8), 265), AllOf(HasSubstr("258"), HasSubstr("265")));
}

TEST(SafetensorsHeaderTest, AFileShorterThanTheLengthIsRefused) {
  EXPECT_THAT(LengthError("", 0), HasSubstr("0 bytes"));
  EXPECT_THAT(LengthError("1234567", 7), HasSubstr("7 bytes"));
}

TEST(SafetensorsHeaderTest, AHeaderOver100MegabytesIsRefused) {
  EXPECT_THAT(LengthError(std::string(8, '\xFF'), UINT64_MAX), HasSubstr("18446744073709551615"));
  EXPECT_THAT(LengthError(std::string("\x01\xE1\xF5\x05\0\0\0\0", 8), UINT64_MAX),
              AllOf(HasSubstr("100000001"), HasSubstr("at most 100000000")));
  EXPECT_TRUE(ParseSafetensorsHeaderLength(std::string("\x00\xE1\xF5\x05\0\0\0\0", 8), UINT64_MAX, "w").ok());
}

TEST(SafetensorsHeaderTest, AHeaderThatIsNoJsonObjectIsRefused) {
  EXPECT_THAT(ErrorOf("", 0), HasSubstr("does not begin with {"));
  EXPECT_THAT(ErrorOf(" {}", 0), HasSubstr("does not begin with {"));
  EXPECT_THAT(ErrorOf("[]", 0), HasSubstr("does not begin with {"));
  EXPECT_THAT(ErrorOf("{\"a\": ", 0), HasSubstr("header: line 1"));
  EXPECT_THAT(ErrorOf("{} x", 0), HasSubstr("header: line 1"));
}

TEST(SafetensorsHeaderTest, ATensorNamedTwiceIsRefused) {
  EXPECT_THAT(ErrorOf(R"({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},)"
                      R"( "w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})",
                      8),
              HasSubstr("duplicate key \"w\""));
}

TEST(SafetensorsHeaderTest, AnUnknownTypeIsNamedAndTheKnownOnesListed) {
  EXPECT_THAT(TensorError("\"F4\"", "[2]", "[0, 1]", 1),
              AllOf(HasSubstr("\"F4\""), HasSubstr("F64, F32, F16, BF16"), HasSubstr("BOOL")));
  EXPECT_THAT(TensorError("7", "[1]", "[0, 4]", 4), HasSubstr("dtype 7"));
}

TEST(SafetensorsHeaderTest, AShapeMustBeAListOfWholeNumbersFromZero) {
  EXPECT_THAT(TensorError("\"F32\"", "[-1, -1]", "[0, 4]", 4), HasSubstr("size -1"));
  EXPECT_THAT(TensorError("\"F32\"", "[1.0]", "[0, 4]", 4), HasSubstr("whole number"));
  EXPECT_THAT(TensorError("\"F32\"", "[9223372036854775808]", "[0, 4]", 4), HasSubstr("whole number"));
  EXPECT_THAT(TensorError("\"F32\"", "[null]", "[0, 4]", 4), HasSubstr("size null"));
  EXPECT_THAT(TensorError("\"F32\"", "1", "[0, 4]", 4), HasSubstr("shape is 1"));
}

TEST(SafetensorsHeaderTest, AShapeWhoseByteCountOverflowsIsRefused) {
  // 2^64 elements, and 2^62 + 1 elements of 4 bytes, would wrap to 0 and 4 bytes.
  EXPECT_THAT(TensorError("\"F32\"", "[4294967296, 4294967296]", "[0, 0]", 0), HasSubstr("63 bits"));
  EXPECT_THAT(TensorError("\"F32\"", "[4611686018427387905]", "[0, 4]", 4), HasSubstr("63 bits"));
  EXPECT_THAT(TensorError("\"F32\"", "[4611686018427387904, 4, 0]", "[0, 0]", 0), HasSubstr("63 bits"));
}

TEST(SafetensorsHeaderTest, OffsetsMustBeTwoWholeNumbersInOrderWithinTheFile) {
  EXPECT_THAT(TensorError("\"F32\"", "[1]", "[8, 4]", 8), HasSubstr("[8, 4] end before they begin"));
  EXPECT_THAT(TensorError("\"F32\"", "[1]", "[-4, 0]", 8), HasSubstr("two whole numbers"));
  EXPECT_THAT(TensorError("\"F32\"", "[1]", "[0]", 4), HasSubstr("two whole numbers"));
  EXPECT_THAT(TensorError("\"F32\"", "[1]", "[0, 4, 8]", 8), HasSubstr("two whole numbers"));
  EXPECT_THAT(TensorError("\"F32\"", "[1]", "[0, 4.0]", 4), HasSubstr("two whole numbers"));
  EXPECT_THAT(TensorError("\"F32\"", "[1]", "\"0:4\"", 4), HasSubstr("two whole numbers"));
  EXPECT_THAT(TensorError("\"F32\"", "[2]", "[0, 8]", 7), AllOf(HasSubstr("past the end"), HasSubstr("7 bytes")));
  EXPECT_THAT(TensorError("\"F32\"", "[1]", "[9223372036854775803, 9223372036854775807]", 4),
              HasSubstr("past the end"));
}

TEST(SafetensorsHeaderTest, TheBytesMustBeThoseOfTypeAndShape) {
  EXPECT_THAT(TensorError("\"F32\"", "[3]", "[0, 8]", 8), AllOf(HasSubstr("span 8 bytes"), HasSubstr("[3] has 12")));
  EXPECT_THAT(TensorError("\"F16\"", "[]", "[0, 4]", 4), HasSubstr("has 2"));
}

TEST(SafetensorsHeaderTest, ATensorMustHaveItsThreeFieldsAndNoOthers) {
  EXPECT_THAT(ErrorOf(R"({"w": {"shape": [1], "data_offsets": [0, 4]}})", 4), HasSubstr("dtype is missing"));
  EXPECT_THAT(ErrorOf(R"({"w": {"dtype": "F32", "data_offsets": [0, 4]}})", 4), HasSubstr("shape is missing"));
  EXPECT_THAT(ErrorOf(R"({"w": {"dtype": "F32", "shape": [1]}})", 4), HasSubstr("data_offsets is missing"));
  EXPECT_THAT(ErrorOf(R"({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4], "stride": [1]}})", 4),
              HasSubstr("unknown field \"stride\""));
  EXPECT_THAT(ErrorOf(R"({"w": [1]})", 4), HasSubstr("a list of 1 value"));
}

TEST(SafetensorsHeaderTest, OverlappingTensorsAreBothNamed) {
  EXPECT_THAT(ErrorOf(R"({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},)"
                      R"( "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 12]}})",
                      12),
              HasSubstr("tensors \"a\" and \"b\" overlap by 4 bytes"));
  EXPECT_THAT(ErrorOf(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},)"
                      R"( "b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})",
                      4),
              HasSubstr("overlap by 4 bytes"));
}

TEST(SafetensorsHeaderTest, BytesThatBelongToNoTensorAreRefused) {
  EXPECT_THAT(ErrorOf(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},)"
                      R"( "b": {"dtype": "F32", "shape": [1], "data_offsets": [8, 12]}})",
                      12),
              HasSubstr("4 bytes before tensor \"b\""));
  EXPECT_THAT(ErrorOf(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}})", 8),
              HasSubstr("4 bytes before tensor \"a\""));
  EXPECT_THAT(ErrorOf(R"({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})", 9),
              HasSubstr("5 bytes after the last tensor, \"a\""));
  EXPECT_THAT(ErrorOf("{}", 3), HasSubstr("3 bytes after the header"));
}

TEST(SafetensorsHeaderTest, MetadataMustBeTexts) {
  EXPECT_THAT(ErrorOf(R"({"__metadata__": {"step": 3}})", 0), AllOf(HasSubstr("\"step\""), HasSubstr("is 3")));
  EXPECT_THAT(ErrorOf(R"({"__metadata__": []})", 0), HasSubstr("__metadata__"));
}

TEST(SafetensorsFileTest, AGoldenFileHasTheValuesThatAnotherReaderSees) {
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(
      "tests/golden/pipelines/pixart_alpha/transformer/diffusion_pytorch_model.safetensors", "transformer");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->tensors().size(), 65u);
  EXPECT_THAT(file->metadata(), ElementsAre(Pair("format", "pt")));
  const StoredTensor* tensor = file->Find("pos_embed.proj.weight");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->type, StoredType::kF32);
  EXPECT_THAT(tensor->shape, ElementsAre(96, 4, 2, 2));
  float values[2];
  ASSERT_TRUE(file->Read(*tensor, 4 * 100, std::as_writable_bytes(std::span(values))).ok());
  EXPECT_EQ(values[0], -0.199616075f);
  EXPECT_EQ(values[1], -0.609233022f);
}

TEST(SafetensorsFileTest, GoldenFilesInHalfPrecisionAreRead) {
  const auto type = [](const std::string& path) {
    const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open("tests/golden/pipelines/" + path, path);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? StoredTypeName(file->tensors().front().type) : "";
  };
  EXPECT_EQ(type("pixart_sigma/transformer/diffusion_pytorch_model.safetensors"), "F16");
  EXPECT_EQ(type("flux_schnell/transformer/diffusion_pytorch_model.safetensors"), "BF16");
}

TEST(SafetensorsFileTest, AnUnknownNameIsNotFound) {
  const TestFolder folder;
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(folder.Write("w", OneTensor("a")), "w");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_NE(file->Find("a"), nullptr);
  EXPECT_EQ(file->Find("b"), nullptr);
  EXPECT_EQ(file->Find("__metadata__"), nullptr);
}

TEST(SafetensorsFileTest, ReadingPastATensorIsRefused) {
  const TestFolder folder;
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(folder.Write("w", OneTensor("a")), "w");
  ASSERT_TRUE(file.ok()) << file.status();
  std::byte out[4];
  EXPECT_TRUE(file->Read(*file->Find("a"), 0, out).ok());
  EXPECT_TRUE(file->Read(*file->Find("a"), 4, {}).ok());
  EXPECT_EQ(file->Read(*file->Find("a"), 1, out).code(), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(file->Read(*file->Find("a"), UINT64_MAX, out).code(), absl::StatusCode::kOutOfRange);
}

TEST(SafetensorsFileTest, AFileCutShortAfterOpeningIsAnError) {
  const TestFolder folder;
  const std::string path =
      folder.Write("w", SafetensorsBytes(R"({"a": {"dtype": "U8", "shape": [100000], "data_offsets": [0, 100000]}})",
                                         std::string(100'000, 'x')));
  const absl::StatusOr<SafetensorsFile> file = SafetensorsFile::Open(path, "vae/w.safetensors");
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::resize_file(path, 5000);
  std::vector<std::byte> out(100'000);
  const absl::Status status = file->Read(*file->Find("a"), 0, out);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("vae/w.safetensors"));
}

TEST(SafetensorsFileTest, AFileCutShortBeforeOpeningIsRefusedWhereverTheCutIs) {
  const TestFolder folder;
  const std::string bytes = OneTensor("a");
  for (size_t size = 0; size < bytes.size(); ++size) {
    const absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::Open(folder.Write("w", bytes.substr(0, size)), "w.safetensors");
    EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST(SafetensorsFileTest, TheHeaderDigestChangesWithTheHeaderOnly) {
  const TestFolder folder;
  const auto digest = [&](const std::string& bytes) {
    return SafetensorsFile::Open(folder.Write("w", bytes), "w")->header_digest();
  };
  std::string other_data = OneTensor("a");
  other_data.back() = 'x';
  EXPECT_EQ(digest(OneTensor("a")), digest(other_data));
  EXPECT_NE(digest(OneTensor("a")), digest(OneTensor("b")));
}

TEST(SafetensorsFileTest, AFileThatIsNoSafetensorsIsRefused) {
  const TestFolder folder;
  // PyTorch's pickles are zip archives.
  const absl::Status status =
      SafetensorsFile::Open(folder.Write("w", "PK\x03\x04 and so on and on"), "w.safetensors").status();
  EXPECT_THAT(std::string(status.message()), HasSubstr("not a safetensors file"));
}

TEST(SafetensorsFileTest, AMissingFileIsNotFound) {
  EXPECT_EQ(SafetensorsFile::Open("/nonexistent", "w").status().code(), absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace tessera::models
