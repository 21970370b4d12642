#include "kernels/cpu/widen.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/instruction_sets.h"

namespace tessera::kernels {
namespace {

// A matrix of random bytes, which holds every code and infinite and undefined scales.
struct RandomRows {
  std::vector<std::byte> bytes;
  std::vector<float> scales, table;
  QuantRows rows;
};

RandomRows MakeRandomRows(QuantType type, int64_t rows, int64_t columns, int64_t scale_block, std::mt19937& random) {
  RandomRows made;
  const int64_t row_bytes = RowBytes(type, columns) + 3;  // rows need not be adjacent
  for (int64_t i = 0; i < rows * row_bytes; ++i) made.bytes.push_back(static_cast<std::byte>(random()));
  std::normal_distribution<float> normal;
  const int64_t scales = type == QuantType::kNibble ? rows * columns / scale_block : rows;
  for (int64_t i = 0; i < scales; ++i) made.scales.push_back(0.01f * normal(random));
  for (int i = 0; i < 16; ++i) made.table.push_back(normal(random));
  made.scales[0] = std::numeric_limits<float>::denorm_min() * 300;
  made.rows = {.type = type,
               .bytes = made.bytes.data(),
               .row_bytes = row_bytes,
               .columns = columns,
               .scales = HasOwnScales(type) ? nullptr : made.scales.data(),
               .scale_block = type == QuantType::kNibble ? scale_block : 0,
               .table = type == QuantType::kNibble ? made.table.data() : nullptr};
  return made;
}

bool SameFloat(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

// Returns the first difference from the definition that is found in columns [first, first + count), or nothing.
std::string Difference(const QuantRows& rows, int64_t row, int64_t first, int64_t count, cpu::Isa isa) {
  const QuantRun run = RunOf(rows, row, first, count);
  const auto size = static_cast<size_t>(count);
  std::vector<float> expected(size), actual(size);
  std::vector<uint16_t> narrow_expected(size), narrow_actual(size);
  ReferenceWiden(run, expected.data());
  ReferenceWidenToBf16(run, narrow_expected.data());
  cpu::WidenFor(isa).to_float(run, actual.data());
  cpu::WidenFor(isa).to_bf16(run, narrow_actual.data());
  for (size_t i = 0; i < size; ++i) {
    if (SameFloat(actual[i], expected[i]) && narrow_actual[i] == narrow_expected[i]) continue;
    return std::string(QuantTypeName(rows.type)) + ", instruction set " + std::to_string(static_cast<int>(isa)) +
           ": value " + std::to_string(i) + " of " + std::to_string(count) + " from " + std::to_string(first) + " is " +
           std::to_string(actual[i]) + " and not " + std::to_string(expected[i]);
  }
  return "";
}

class WidenTest : public testing::TestWithParam<QuantType> {};

TEST_P(WidenTest, GivesTheBitsOfItsDefinitionOnEveryInstructionSet) {
  std::mt19937 random(7);
  const int64_t block = BlockOf(GetParam()).values;
  for (const int64_t scale_block : {2, 8, 32, 64, 96, 128}) {
    if (GetParam() != QuantType::kNibble && scale_block != 64) continue;
    for (const int64_t blocks : {1, 2, 3, 5, 7, 16, 65}) {
      const int64_t columns = GetParam() == QuantType::kNibble ? blocks * scale_block : blocks * block;
      const RandomRows made = MakeRandomRows(GetParam(), 9, columns, scale_block, random);
      for (const cpu::Isa isa : IsasOfThisMachine()) {
        for (int64_t row = 0; row < 9; ++row) EXPECT_EQ(Difference(made.rows, row, 0, columns, isa), "");
        // Parts of rows, as products take them.
        for (const int64_t first : {block, columns / block / 2 * block}) {
          if (first < columns) {
            EXPECT_EQ(Difference(made.rows, 3, first, columns - first, isa), "");
          }
          EXPECT_EQ(Difference(made.rows, 8, 0, first < columns ? first : columns, isa), "");
        }
      }
    }
  }
}

TEST_P(WidenTest, WritesRowsInOrder) {
  std::mt19937 random(3);
  constexpr int64_t kColumns = 512;
  const RandomRows made = MakeRandomRows(GetParam(), 5, kColumns, 64, random);
  std::vector<float> wide(3 * kColumns), row(kColumns);
  std::vector<uint16_t> narrow(3 * kColumns), narrow_row(kColumns);
  cpu::WidenRows(made.rows, 1, 3, wide.data());
  cpu::WidenRowsToBf16(made.rows, 1, 3, narrow.data());
  for (int64_t r = 0; r < 3; ++r) {
    ReferenceWiden(RunOf(made.rows, r + 1, 0, kColumns), row.data());
    ReferenceWidenToBf16(RunOf(made.rows, r + 1, 0, kColumns), narrow_row.data());
    for (int64_t i = 0; i < kColumns; ++i) {
      const auto at = static_cast<size_t>(i), of_all = static_cast<size_t>(r * kColumns + i);
      EXPECT_TRUE(SameFloat(wide[of_all], row[at]) && narrow[of_all] == narrow_row[at]) << r << ", " << i;
    }
  }
}

TEST_P(WidenTest, SeesWhatIsNotFinite) {
  std::mt19937 random(5);
  int finite = 0, infinite = 0;
  for (int trial = 0; trial < 400; ++trial) {
    RandomRows made = MakeRandomRows(GetParam(), 2, 256, 64, random);
    // fp8 codes without those that are not numbers, except in every second matrix.
    if (trial % 2 == 0) {
      for (std::byte& byte : made.bytes) byte &= std::byte{0xb3};
    }
    for (float& scale : made.scales) {
      if (random() % 16 == 0) scale = 1e37f * static_cast<float>(random() % 40);
      if (random() % 64 == 0) scale = std::numeric_limits<float>::quiet_NaN();
    }
    if (trial % 10 == 0) made.table[random() % 16] = std::numeric_limits<float>::infinity();
    std::vector<float> wide(512);
    cpu::WidenRows(made.rows, 0, 2, wide.data());
    bool expected = true;
    for (const float value : wide) expected = expected && std::isfinite(value);
    ASSERT_EQ(AllFinite(made.rows, 2), expected) << trial;
    ++(expected ? finite : infinite);
  }
  EXPECT_GT(finite, 0);
  EXPECT_GT(infinite, 0);
}

INSTANTIATE_TEST_SUITE_P(Forms, WidenTest, testing::ValuesIn(kQuantTypes),
                         [](const auto& param) { return std::string(QuantTypeName(param.param)); });

TEST(QuantizeTest, RoundsToTheNearestInt8OfTheRowsScale) {
  const std::vector<float> rows = {1, -2, 0.5f, 127, 3.5f, -126.5f, 0, 0, 0, 0, 0, 0};
  std::vector<std::byte> codes(12);
  std::vector<float> scales(2);
  QuantizeRows(QuantType::kInt8, rows.data(), 2, 6, codes.data(), scales.data());
  EXPECT_EQ(scales, (std::vector<float>{1, 1}));
  const std::vector<int> expected = {1, -2, 0, 127, 4, -126, 0, 0, 0, 0, 0, 0};
  for (size_t i = 0; i < 12; ++i) EXPECT_EQ(static_cast<int>(static_cast<int8_t>(codes[i])), expected[i]) << i;
}

TEST(QuantizeTest, RoundsToTheNearestFp8OfTheRowsScale) {
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> rows(4096);
  for (float& value : rows) value = normal(random) * std::exp(4 * normal(random));
  std::vector<std::byte> codes(4096);
  float scale = 0;
  QuantizeRows(QuantType::kF8E4M3, rows.data(), 1, 4096, codes.data(), &scale);
  // The values of all codes, one after another.
  std::vector<std::byte> all(256);
  for (size_t i = 0; i < 256; ++i) all[i] = static_cast<std::byte>(i);
  std::vector<float> values(256);
  const float one = 1;
  ReferenceWiden(
      {.type = QuantType::kF8E4M3, .bytes = reinterpret_cast<const uint8_t*>(all.data()), .count = 256, .scales = &one},
      values.data());
  for (size_t i = 0; i < rows.size(); ++i) {
    const float x = rows[i] / scale;
    float nearest = 0, error = std::numeric_limits<float>::infinity();
    for (const float value : values) {
      if (std::abs(value - x) < error) {
        error = std::abs(value - x);
        nearest = value;
      }
    }
    EXPECT_EQ(std::abs(values[static_cast<size_t>(codes[i])] - x), std::abs(nearest - x)) << x;
  }
}

// ggml's quantize_row_q8_0_ref, with roundf and a conversion to fp16 by search.
TEST(QuantizeTest, MakesTheQ8BlocksOfGgml) {
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  for (int trial = 0; trial < 300; ++trial) {
    std::vector<float> row(64);
    const float size = trial % 10 == 0 ? 0.0f : std::exp(3 * normal(random));
    for (float& value : row) value = normal(random) * size;
    row[5] = size * 127.5f, row[6] = -size * 0.5f, row[7] = size * 1.5f;
    std::vector<std::byte> bytes(2 * 34);
    QuantizeRows(QuantType::kQ8_0, row.data(), 1, 64, bytes.data(), nullptr);
    std::vector<float> wide(64);
    const auto* blocks = reinterpret_cast<const uint8_t*>(bytes.data());
    ReferenceWiden({.type = QuantType::kQ8_0, .bytes = blocks, .count = 64}, wide.data());
    for (size_t block = 0; block < 2; ++block) {
      float largest = 0;
      for (size_t i = 0; i < 32; ++i) largest = std::max(largest, std::abs(row[32 * block + i]));
      const float d = largest / 127.0f, inverse = d != 0 ? 1.0f / d : 0.0f;
      // The stored half is within half a unit of its last place.
      uint8_t one[34] = {blocks[34 * block], blocks[34 * block + 1], 1};
      float half = 0, values[32];
      ReferenceWiden({.type = QuantType::kQ8_0, .bytes = one, .count = 32}, values);
      half = values[0];
      EXPECT_LE(std::abs(half - d), d * 0x1p-11f + 0x1p-25f);
      for (size_t i = 0; i < 32; ++i) {
        const auto code = static_cast<int8_t>(blocks[34 * block + 2 + i]);
        EXPECT_EQ(code, static_cast<int>(std::round(row[32 * block + i] * inverse))) << trial << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
