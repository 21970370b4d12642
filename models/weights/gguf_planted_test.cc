#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kernels/quantized/quant_rows.h"
#include "models/weights/gguf.h"
#include "models/weights/safetensors.h"
#include "models/weights/stored_types.h"
#include "tests/support/gguf_bytes.h"
#include "tests/support/planted_bug.h"

namespace tessera::models {
namespace {

// Returns the names of the types in blocks.gguf whose values differ from those in blocks.safetensors.
std::string WrongTypes() {
  const std::string folder = "tests/golden-files/blocks/";
  const absl::StatusOr<GgufFile> file = GgufFile::Open(folder + "blocks.gguf", "blocks.gguf");
  const absl::StatusOr<SafetensorsFile> gold =
      SafetensorsFile::Open(folder + "blocks.safetensors", "blocks.safetensors");
  if (!file.ok() || !gold.ok()) return "no files";
  std::string wrong;
  for (const StoredTensor& tensor : file->tensors()) {
    const std::optional<kernels::QuantType> type = QuantTypeOf(tensor.type);
    if (!type) continue;
    const StoredTensor* expected_tensor = gold->Find("values." + StoredTypeName(tensor.type));
    std::vector<std::byte> bytes(tensor.bytes());
    std::vector<float> values(static_cast<size_t>(tensor.elements())), expected(values.size());
    if (expected_tensor == nullptr || !file->Read(tensor, 0, bytes).ok() ||
        !gold->Read(*expected_tensor, 0, std::as_writable_bytes(std::span(expected))).ok()) {
      return "no values";
    }
    // Blocks follow one another also over the ends of rows.
    kernels::ReferenceWiden(
        {.type = *type, .bytes = reinterpret_cast<const uint8_t*>(bytes.data()), .count = tensor.elements()},
        values.data());
    if (values != expected) wrong += StoredTypeName(tensor.type) + " ";
  }
  return wrong;
}

TEST(PlantedBlocksTest, AreRightWithoutABug) {
  const PlantedBug none("");
  EXPECT_EQ(WrongTypes(), "");
}

TEST(PlantedBlocksTest, SwappedNibblesShowInEveryTypeOfFourBits) {
  const PlantedBug planted("quant_nibbles_swapped");
  const std::string wrong = WrongTypes();
  for (const char* type : {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "IQ4_NL", "IQ4_XS"}) {
    EXPECT_NE(wrong.find(type), std::string::npos) << type;
  }
}

TEST(PlantedBlocksTest, ANeighboursScaleShowsInEveryType) {
  const PlantedBug planted("quant_neighbours_scale");
  const std::string wrong = WrongTypes();
  for (const char* type :
       {"Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"}) {
    EXPECT_NE(wrong.find(type), std::string::npos) << type;
  }
}

TEST(PlantedBlocksTest, AnInvertedMaskAndUnsignedScalesShow) {
  {
    const PlantedBug planted("quant_mask_inverted");
    EXPECT_EQ(WrongTypes(), "Q3_K ");
  }
  const PlantedBug planted("quant_scale_unsigned");
  EXPECT_EQ(WrongTypes(), "Q6_K ");
}

// The values of a matrix [2, 4] of which the second row has twice the scale.
std::vector<float> TwoRows(kernels::QuantType type) {
  const std::vector<std::byte> bytes = {std::byte{0x12}, std::byte{0x34}, std::byte{0x12}, std::byte{0x34},
                                        std::byte{0x12}, std::byte{0x34}, std::byte{0x12}, std::byte{0x34}};
  const std::vector<float> scales = {1, 2}, table = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const kernels::QuantRows rows{.type = type,
                                .bytes = bytes.data(),
                                .row_bytes = 4,
                                .columns = 4,
                                .scales = scales.data(),
                                .scale_block = 4,
                                .table = table.data()};
  std::vector<float> values(8);
  for (int64_t row = 0; row < 2; ++row) {
    kernels::ReferenceWiden(kernels::RunOf(rows, row, 0, 4), values.data() + 4 * row);
  }
  return values;
}

TEST(PlantedScalesTest, ANeighboursScaleShows) {
  for (const kernels::QuantType type :
       {kernels::QuantType::kInt8, kernels::QuantType::kF8E4M3, kernels::QuantType::kNibble}) {
    std::vector<float> right;
    {
      const PlantedBug none("");
      right = TwoRows(type);
    }
    const PlantedBug planted("quant_neighbours_scale");
    EXPECT_NE(TwoRows(type), right);
  }
  const PlantedBug planted("quant_nibbles_swapped");
  EXPECT_EQ(TwoRows(kernels::QuantType::kNibble), (std::vector<float>{2, 1, 4, 3, 4, 2, 8, 6}));
}

TEST(PlantedGgufTest, SizesInTheOrderOfTheFileShow) {
  const std::string bytes =
      GgufBytes().U32("general.alignment", 256).Tensor("w", {2, 4}, 0, 0).Bytes(std::string(32, ' '), 256);
  {
    const PlantedBug none("");
    const absl::StatusOr<GgufHeader> header = ParseGgufHeader(bytes, bytes.size(), "w.gguf");
    ASSERT_TRUE(header.ok()) << header.status();
    EXPECT_EQ(header->tensors[0].shape, (std::vector<int64_t>{4, 2}));
    EXPECT_EQ(header->tensors[0].end, bytes.size());
  }
  {
    const PlantedBug planted("gguf_sizes_not_reversed");
    EXPECT_EQ(ParseGgufHeader(bytes, bytes.size(), "w.gguf")->tensors[0].shape, (std::vector<int64_t>{2, 4}));
  }
  const PlantedBug planted("gguf_alignment_ignored");
  EXPECT_NE(ParseGgufHeader(bytes, bytes.size(), "w.gguf")->tensors[0].end, bytes.size());
}

}  // namespace
}  // namespace tessera::models
