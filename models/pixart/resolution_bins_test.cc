#include "models/pixart/resolution_bins.h"

#include <gtest/gtest.h>

#include <string>

#include "base/files/file.h"
#include "base/json/json.h"
#include "control/model/model_cost.h"

namespace tessera::models {
namespace {

struct NamedTable {
  const char* name;
  int64_t sample_size;
};
constexpr NamedTable kTables[] = {{"ASPECT_RATIO_256_BIN", 32},
                                  {"ASPECT_RATIO_512_BIN", 64},
                                  {"ASPECT_RATIO_1024_BIN", 128},
                                  {"ASPECT_RATIO_2048_BIN", 256}};

base::Json ReadSizes() {
  const absl::StatusOr<std::string> text =
      base::ReadWholeFile("tests/golden/functions/sizes.json", "sizes.json", 1 << 20);
  EXPECT_TRUE(text.ok()) << text.status();
  absl::StatusOr<base::Json> json = base::ParseJson(*text, "sizes.json");
  EXPECT_TRUE(json.ok()) << json.status();
  return *std::move(json);
}

control::ImageSize Size(const base::Json& pair) {
  return {.height = static_cast<int64_t>(pair.items()[0].AsNumber().value()),
          .width = static_cast<int64_t>(pair.items()[1].AsNumber().value())};
}

TEST(ResolutionBins, TablesAreTheReferences) {
  const base::Json sizes = ReadSizes();
  for (const auto& [name, sample_size] : kTables) {
    const std::span<const base::JsonMember> expected = sizes.Find("bins")->Find(name)->members();
    const std::vector<control::StandardSize> table = PixArtSizes(PixArtVariant::kSigma, sample_size).sizes;
    ASSERT_EQ(table.size(), expected.size()) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(table[i].ratio, std::stod(expected[i].key)) << name;
      EXPECT_EQ((control::ImageSize{.height = table[i].height, .width = table[i].width}), Size(expected[i].value))
          << name << " " << expected[i].key;
    }
  }
}

TEST(ResolutionBins, ClassifiesAsTheReference) {
  const base::Json sizes = ReadSizes();
  const std::span<const base::Json> rows = sizes.Find("classified")->items();
  ASSERT_FALSE(rows.empty());
  for (const base::Json& row : rows) {
    const int64_t height = row.Find("height")->AsInt().value(), width = row.Find("width")->AsInt().value();
    for (const auto& [name, sample_size] : kTables) {
      EXPECT_EQ(
          control::NearestSize(PixArtSizes(PixArtVariant::kSigma, sample_size), {.height = height, .width = width}),
          Size(*row.Find(name)))
          << name << " " << height << " x " << width;
    }
  }
}

TEST(ResolutionBins, TakesTheFirstOfEquallyNearBins) {
  const control::StandardSizes table = {.sizes = {{3.0, 1, 1}, {0.5, 2, 2}, {1.5, 3, 3}}};
  EXPECT_EQ(control::NearestSize(table, {.height = 100, .width = 100}), (control::ImageSize{.height = 2, .width = 2}));
}

TEST(ResolutionBins, AlphaHasNoTableOf2048) {
  EXPECT_TRUE(PixArtSizes(PixArtVariant::kAlpha, 256).sizes.empty());
  EXPECT_FALSE(PixArtSizes(PixArtVariant::kAlpha, 128).sizes.empty());
}

TEST(ResolutionBins, OtherSampleSizesHaveNoTable) {
  for (const int64_t sample_size : {-1, 0, 8, 96, 512}) {
    EXPECT_TRUE(PixArtSizes(PixArtVariant::kSigma, sample_size).sizes.empty()) << sample_size;
  }
}

}  // namespace
}  // namespace tessera::models
