#include "server/metadata/fitted_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "server/image/image_file.h"
#include "server/metadata/parameters_text.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ImageParameters ParametersOf(const std::string& prompt) {
  return {.prompt = prompt, .steps = 7, .seed = 5, .width = 64, .height = 32, .model = "tiny"};
}

TEST(FittedParametersTest, WhatFitsIsWrittenWholeAndWithoutAWarning) {
  for (const ImageFormat format : {ImageFormat::kPng, ImageFormat::kJpeg, ImageFormat::kWebp}) {
    const absl::StatusOr<FittedParameters> fitted = FitParameters(ParametersOf("a pear"), format);
    ASSERT_TRUE(fitted.ok()) << fitted.status();
    EXPECT_EQ(fitted->text, FormatParameters(ParametersOf("a pear")).value());
    EXPECT_THAT(fitted->warnings, IsEmpty());
  }
}

TEST(FittedParametersTest, ALongPromptIsShortenedForJpegAloneAndTheOtherParametersStay) {
  const std::string prompt(40'000, 'x');
  const absl::StatusOr<FittedParameters> png = FitParameters(ParametersOf(prompt), ImageFormat::kPng);
  ASSERT_TRUE(png.ok()) << png.status();
  EXPECT_EQ(ParseParameters(png->text)->prompt, prompt);
  EXPECT_THAT(png->warnings, IsEmpty());

  const absl::StatusOr<FittedParameters> jpeg = FitParameters(ParametersOf(prompt), ImageFormat::kJpeg);
  ASSERT_TRUE(jpeg.ok()) << jpeg.status();
  EXPECT_TRUE(CheckEncodable(ImageFormat::kJpeg, 64, 32, jpeg->text).ok());
  EXPECT_FALSE(CheckEncodable(ImageFormat::kJpeg, 64, 32, jpeg->text + "x").ok()) << "there is room for more";
  const ImageParameters read = ParseParameters(jpeg->text).value();
  EXPECT_EQ(read.prompt, prompt.substr(0, read.prompt.size()));
  EXPECT_EQ(read.seed, 5u);
  EXPECT_EQ(read.steps, 7);
  EXPECT_EQ(read.model, "tiny");
  EXPECT_EQ(read.extra.at(kShortenedKey), "prompt");
  EXPECT_THAT(jpeg->warnings, ElementsAre(HasSubstr("a shortened prompt of at most ")));
}

TEST(FittedParametersTest, AShortPromptStaysWholeWithALongNegativeOne) {
  ImageParameters parameters = ParametersOf("a pear");
  parameters.negative_prompt = std::string(40'000, 'y');
  const ImageParameters read = ParseParameters(FitParameters(parameters, ImageFormat::kJpeg)->text).value();
  EXPECT_EQ(read.prompt, "a pear");
  EXPECT_GT(read.negative_prompt->size(), 30'000u);
  EXPECT_EQ(read.extra.at(kShortenedKey), "negative prompt");
}

TEST(FittedParametersTest, NoCharacterIsCutInTwo) {
  std::string prompt;
  for (int i = 0; i < 30'000; ++i) prompt += i % 7 == 0 ? "x" : "\u4E2D";
  const ImageParameters read = ParseParameters(FitParameters(ParametersOf(prompt), ImageFormat::kJpeg)->text).value();
  EXPECT_GT(read.prompt.size(), 30'000u);
  EXPECT_EQ(read.prompt, prompt.substr(0, read.prompt.size()));
  EXPECT_NE(static_cast<unsigned char>(prompt[read.prompt.size()]) & 0xC0, 0x80);
}

TEST(FittedParametersTest, ASizeThatTheFormatDoesNotHaveIsItsError) {
  ImageParameters parameters = ParametersOf("a pear");
  parameters.width = 16384;
  EXPECT_THAT(FitParameters(parameters, ImageFormat::kWebp).status().message(), HasSubstr("16383"));
}

}  // namespace
}  // namespace tessera::server
