#include "server/image/image_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <png.h>
#include <webp/decode.h>

#include <cmath>
#include <fstream>
#include <iterator>
#include <string>

namespace tessera::server {
namespace {

using std::string_literals::operator""s;
using testing::HasSubstr;

constexpr ImageFormat kFormats[] = {ImageFormat::kPng, ImageFormat::kJpeg, ImageFormat::kWebp};
constexpr char kParameters[] = "a red apple\nSteps: 20, Seed: 1";

// Returns a picture that is smooth in both directions, so that lossy formats stay close.
control::Frames Gradient(int width, int height) {
  control::Frames image{.width = width, .height = height, .bytes = {}};
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      image.bytes.push_back(static_cast<uint8_t>(255 * x / width));
      image.bytes.push_back(static_cast<uint8_t>(255 * y / height));
      image.bytes.push_back(static_cast<uint8_t>(128));
    }
  }
  return image;
}

std::string Encoded(ImageFormat format, const EncodeOptions& options = {.parameters = kParameters}) {
  return EncodeImage(Gradient(33, 17), format, options).value();
}

std::string FileContent(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

double RootMeanSquare(const control::Frames& a, const control::Frames& b) {
  double sum = 0;
  for (size_t i = 0; i < a.bytes.size(); ++i) sum += std::pow(int{a.bytes[i]} - int{b.bytes[i]}, 2);
  return std::sqrt(sum / static_cast<double>(a.bytes.size()));
}

class EveryFormat : public testing::TestWithParam<ImageFormat> {};

INSTANTIATE_TEST_SUITE_P(ImageFile, EveryFormat, testing::ValuesIn(kFormats),
                         [](const auto& info) { return std::string(ImageFormatName(info.param)); });

TEST_P(EveryFormat, ParametersComeBackUnchanged) {
  for (const std::string& text : {""s, std::string(kParameters), "caf\u00E9"s, "\u4E2D\u6587 \U0001F34E\nline"s}) {
    const auto decoded = DecodeImage(Encoded(GetParam(), {.parameters = text}));
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->parameters, text);
  }
}

TEST_P(EveryFormat, SizeAndFormatComeBackForOddSizes) {
  for (const auto& [width, height] : {std::pair(1, 1), std::pair(7, 3), std::pair(64, 65)}) {
    const auto decoded = DecodeImage(EncodeImage(Gradient(width, height), GetParam(), {}).value());
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->image.width, width);
    EXPECT_EQ(decoded->image.height, height);
    EXPECT_EQ(decoded->format, GetParam());
  }
}

TEST_P(EveryFormat, EqualImagesGiveEqualBytes) { EXPECT_EQ(Encoded(GetParam()), Encoded(GetParam())); }

TEST_P(EveryFormat, EveryShorterFileIsRefused) {
  const std::string whole = Encoded(GetParam());
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_FALSE(DecodeImage(whole.substr(0, length)).ok()) << length << " of " << whole.size();
  }
}

TEST_P(EveryFormat, FlippedBytesNeverCrashAndKeepTheSizeConsistent) {
  const std::string whole = Encoded(GetParam());
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string flipped = whole;
    flipped[i] = static_cast<char>(~flipped[i]);
    const auto decoded = DecodeImage(flipped);
    if (decoded.ok()) {
      EXPECT_EQ(decoded->image.bytes.size(), size_t{3} * decoded->image.width * decoded->image.height);
    }
  }
}

TEST_P(EveryFormat, PixelsOfAnotherSizeAreRefused) {
  control::Frames image = Gradient(8, 8);
  image.bytes.pop_back();
  EXPECT_EQ(EncodeImage(image, GetParam(), {}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(EveryFormat, SeveralFramesOrOtherChannelsThanColourAndAlphaAreRefused) {
  control::Frames image = Gradient(8, 8);
  image.count = 2;
  image.bytes.resize(2 * image.bytes.size());
  const absl::Status frames = EncodeImage(image, GetParam(), {}).status();
  EXPECT_EQ(frames.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(frames.message(), HasSubstr(ImageFormatName(GetParam())));
  for (const int channels : {0, 1, 2, 5}) {
    image = {.width = 8, .height = 8, .channels = channels, .bytes = std::vector<uint8_t>(size_t{64} * channels)};
    EXPECT_EQ(EncodeImage(image, GetParam(), {}).status().code(), absl::StatusCode::kInvalidArgument) << channels;
  }
}

TEST_P(EveryFormat, ParametersThatAreNotUtf8AreRefused) {
  EXPECT_THAT(CheckEncodable(GetParam(), 8, 8, "\xFF").message(), HasSubstr("UTF-8"));
  EXPECT_THAT(CheckEncodable(GetParam(), 8, 8, "a\0b"s).message(), HasSubstr("NUL"));
}

TEST_P(EveryFormat, SizesOutsideTheLimitsAreRefused) {
  EXPECT_FALSE(CheckEncodable(GetParam(), 0, 8, "").ok());
  EXPECT_FALSE(CheckEncodable(GetParam(), 8, -1, "").ok());
  EXPECT_THAT(CheckEncodable(GetParam(), kMaxImageSide + 1, 8, "").message(), HasSubstr("32768"));
  EXPECT_FALSE(CheckEncodable(GetParam(), kMaxImageSide, kMaxImageSide, "").ok());
}

TEST_P(EveryFormat, QualityOutsideOneToHundredIsRefused) {
  for (const int quality : {-1, 0, 101}) {
    EXPECT_FALSE(EncodeImage(Gradient(8, 8), GetParam(), {.quality = quality}).ok()) << quality;
  }
}

TEST(ImageFileTest, LosslessFormatsKeepEveryPixel) {
  const control::Frames image = Gradient(33, 17);
  for (const ImageFormat format : {ImageFormat::kPng, ImageFormat::kWebp}) {
    EXPECT_EQ(DecodeImage(EncodeImage(image, format, {}).value())->image.bytes, image.bytes) << ImageFormatName(format);
  }
}

// A picture whose alpha and colours differ in every pixel.
control::Frames Translucent(int width, int height) {
  control::Frames image{.width = width, .height = height, .channels = 4, .bytes = {}};
  for (int i = 0; i < width * height; ++i) {
    image.bytes.insert(image.bytes.end(), {uint8_t(i), uint8_t(3 * i + 1), uint8_t(200 - i), uint8_t(255 * i / 88)});
  }
  return image;
}

TEST(ImageFileTest, PngKeepsAlpha) {
  const control::Frames image = Translucent(11, 8);
  const std::string file = EncodeImage(image, ImageFormat::kPng, {.parameters = kParameters}).value();
  png_image header = {.version = PNG_IMAGE_VERSION};
  ASSERT_NE(png_image_begin_read_from_memory(&header, file.data(), file.size()), 0) << header.message;
  EXPECT_EQ(header.format, static_cast<png_uint_32>(PNG_FORMAT_RGBA));
  EXPECT_EQ(header.width, 11u);
  EXPECT_EQ(header.height, 8u);
  std::vector<uint8_t> bytes(PNG_IMAGE_SIZE(header));
  ASSERT_NE(png_image_finish_read(&header, nullptr, bytes.data(), 0, nullptr), 0) << header.message;
  EXPECT_EQ(bytes, image.bytes);
  EXPECT_EQ(DecodeImage(file)->parameters, kParameters);
}

TEST(ImageFileTest, LosslessWebpKeepsAlphaAndTheColoursOfTransparentPixels) {
  const control::Frames image = Translucent(11, 8);
  const std::string file = EncodeImage(image, ImageFormat::kWebp, {.parameters = kParameters}).value();
  std::vector<uint8_t> bytes(image.bytes.size());
  ASSERT_NE(WebPDecodeRGBAInto(reinterpret_cast<const uint8_t*>(file.data()), file.size(), bytes.data(), bytes.size(),
                               static_cast<int>(image.row_bytes())),
            nullptr);
  EXPECT_EQ(bytes, image.bytes);
}

TEST(ImageFileTest, JpegRefusesAlphaByItsName) {
  const absl::Status refused = EncodeImage(Translucent(11, 8), ImageFormat::kJpeg, {}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "image with alpha: JPEG has no transparency; use .png or .webp");
}

// At quality 95 the quantisation of a smooth gradient stays within one grey level; 2 leaves room for rounding.
TEST(ImageFileTest, LossyFormatsStayCloseOnAGradient) {
  const control::Frames image = Gradient(64, 64);
  const EncodeOptions lossy = {.webp_lossless = false};
  for (const ImageFormat format : {ImageFormat::kJpeg, ImageFormat::kWebp}) {
    const auto decoded = DecodeImage(EncodeImage(image, format, lossy).value());
    EXPECT_LT(RootMeanSquare(decoded->image, image), 2.0) << ImageFormatName(format);
  }
}

// One-pixel red and blue columns vanish where colour is stored at half the width.
TEST(ImageFileTest, JpegKeepsColourAtFullResolution) {
  control::Frames image{.width = 16, .height = 16, .bytes = {}};
  for (int i = 0; i < 16 * 16; ++i) {
    const bool red = i % 2 == 0;
    image.bytes.insert(image.bytes.end(), {uint8_t(red ? 255 : 0), 0, uint8_t(red ? 0 : 255)});
  }
  const auto decoded = DecodeImage(EncodeImage(image, ImageFormat::kJpeg, {}).value());
  EXPECT_LT(RootMeanSquare(decoded->image, image), 12.0);
}

TEST(ImageFileTest, PngTextIsLatin1WhereItFitsAndUtf8Otherwise) {
  EXPECT_THAT(Encoded(ImageFormat::kPng, {.parameters = "caf\u00E9"}), HasSubstr("tEXtparameters\0caf\xE9"s));
  EXPECT_THAT(Encoded(ImageFormat::kPng, {.parameters = "\u4E2D"}), HasSubstr("iTXtparameters\0\0\0\0\0\xE4\xB8\xAD"s));
}

TEST(ImageFileTest, LongParametersFitPngAndWebpAndAreRefusedForJpeg) {
  const std::string longest(100'000, 'x');
  for (const ImageFormat format : {ImageFormat::kPng, ImageFormat::kWebp}) {
    EXPECT_EQ(DecodeImage(Encoded(format, {.parameters = longest}))->parameters, longest);
  }
  const absl::Status refused = CheckEncodable(ImageFormat::kJpeg, 8, 8, longest);
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(refused.message(), HasSubstr(".png"));
}

TEST(ImageFileTest, LongestParametersThatJpegAllowsComeBack) {
  std::string text(32'000, 'x');
  while (CheckEncodable(ImageFormat::kJpeg, 33, 17, text + "x").ok()) text.push_back('x');
  EXPECT_EQ(DecodeImage(Encoded(ImageFormat::kJpeg, {.parameters = text}))->parameters, text);
}

TEST(ImageFileTest, WebpSidesOverItsLimitAreRefused) {
  EXPECT_TRUE(CheckEncodable(ImageFormat::kWebp, 16383, 8, "").ok());
  EXPECT_THAT(CheckEncodable(ImageFormat::kWebp, 16384, 8, "").message(), HasSubstr("16383"));
}

// The files were made with Pillow 13 from 4x3 pixels: rows of red, green and blue.
TEST(ImageFileTest, FilesOfAnotherProgramAreRead) {
  const std::string expected =
      "\xFF\0\0\xFF\0\0\xFF\0\0\xFF\0\0"s + "\0\xFF\0\0\xFF\0\0\xFF\0\0\xFF\0"s + "\0\0\xFF\0\0\xFF\0\0\xFF\0\0\xFF"s;
  for (const char* name : {"rgb.png", "rgba_interlaced.png", "palette.png", "sixteen_bit.png", "lossless.webp"}) {
    const auto decoded = DecodeImage(FileContent("tests/fuzz/image/"s + name));
    ASSERT_TRUE(decoded.ok()) << name << ": " << decoded.status();
    EXPECT_EQ(std::string(decoded->image.bytes.begin(), decoded->image.bytes.end()), expected) << name;
  }
}

TEST(ImageFileTest, ParametersOfAnotherProgramAreRead) {
  for (const char* name : {"rgb.png", "unicode.png", "compressed_text.png", "exif.jpg", "exif.webp"}) {
    const auto decoded = DecodeImage(FileContent("tests/fuzz/image/"s + name));
    ASSERT_TRUE(decoded.ok()) << name << ": " << decoded.status();
    EXPECT_THAT(decoded->parameters, HasSubstr("Steps: 20, Sampler: Euler a, CFG scale: 7, Seed: 42")) << name;
  }
}

TEST(ImageFileTest, AnimationsAndFourColourFilesAreRefused) {
  EXPECT_THAT(DecodeImage(FileContent("tests/fuzz/image/animation.webp")).status().message(), HasSubstr("animation"));
  EXPECT_THAT(DecodeImage(FileContent("tests/fuzz/image/cmyk.jpg")).status().message(), HasSubstr("components"));
}

TEST(ImageFileTest, DamagedPngMetadataIsAnErrorAndNotSilentlyLost) {
  std::string file = Encoded(ImageFormat::kPng);
  file[file.find("red apple")] = 'R';
  EXPECT_EQ(DecodeImage(file).status().code(), absl::StatusCode::kDataLoss);
}

TEST(ImageFileTest, OtherContentIsRefusedByName) {
  for (const std::string& content : {""s, "GIF89a"s, "RIFF\0\0\0\0AVI "s, "hello"s}) {
    EXPECT_THAT(DecodeImage(content).status().message(), HasSubstr("neither PNG nor JPEG nor WebP"));
  }
}

// The headers claim a picture of gigabytes, for which no memory may be allocated.
TEST(ImageFileTest, HugePicturesInShortFilesAreRefused) {
  for (const char* name : {"huge_side.png", "huge_area.png", "huge.jpg", "huge.webp"}) {
    const auto decoded = DecodeImage(FileContent("tests/fuzz/image/"s + name));
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kResourceExhausted) << name << ": " << decoded.status();
  }
}

TEST(ImageFileTest, TextThatUnpacksToManyMegabytesIsRefused) {
  const auto decoded = DecodeImage(FileContent("tests/fuzz/image/text_bomb.png"));
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kDataLoss) << decoded.status();
  EXPECT_THAT(decoded.status().message(), HasSubstr("zTXt"));
}

TEST(ImageFileTest, ChunkThatClaimsMoreThanTheFileIsRefusedBeforeItIsAllocated) {
  const auto decoded = DecodeImage(FileContent("tests/fuzz/image/chunk_longer_than_file.png"));
  EXPECT_THAT(decoded.status().message(), HasSubstr("cut short"));
}

TEST(ImageFileTest, FormatFollowsTheExtensionInEitherCase) {
  EXPECT_EQ(FormatFromPath("a/b.c/x.PNG").value(), ImageFormat::kPng);
  EXPECT_EQ(FormatFromPath("x.jpg").value(), ImageFormat::kJpeg);
  EXPECT_EQ(FormatFromPath("x.Jpeg").value(), ImageFormat::kJpeg);
  EXPECT_EQ(FormatFromPath("x.webp").value(), ImageFormat::kWebp);
}

TEST(ImageFileTest, UnknownExtensionNamesTheValidOnes) {
  for (const char* path : {"x", "x.", "x.gif", "folder.png/x", ""}) {
    const absl::Status status = FormatFromPath(path).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << path;
    EXPECT_THAT(status.message(), HasSubstr(".png, .jpg, .jpeg and .webp")) << path;
  }
}

}  // namespace
}  // namespace tessera::server
