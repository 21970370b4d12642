// Tests images that begin from pictures, on the command line with the real worker.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "server/image/image_file.h"
#include "tests/front/child_process.h"
#include "tests/support/test_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

constexpr char kFlux[] = "tests/golden/pipelines/flux_dev";
constexpr char kPicture[] = "tests/golden-inputs/images/wide.png";
constexpr char kMask[] = "tests/golden-inputs/images/mask_hard.png";

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

class PictureCommandTest : public ::testing::Test {
 protected:
  struct Result {
    int exit_code = -1;
    std::string output, errors;
  };

  void SetUp() override { fs::create_directory(temporary()); }

  Result Run(std::vector<std::string> arguments) const {
    ChildOptions options;
    arguments.insert(arguments.begin(), TESSERA_EXECUTABLE);
    options.arguments = std::move(arguments);
    options.folder = fs::current_path();
    options.environment = {{"PATH", "/usr/bin:/bin"},
                           {"TESSERA_WORKER", TESSERA_WORKER_EXECUTABLE},
                           {"TMPDIR", temporary()},
                           {"XDG_DATA_HOME", folder_ / "data"},
                           {"XDG_RUNTIME_DIR", folder_.path()}};
    ChildProcess child(options);
    const int exit_code = child.Wait();
    return {.exit_code = exit_code, .output = child.output(), .errors = child.errors()};
  }

  Result Generate(const std::string& name, const std::vector<std::string>& more, const char* model = kFlux) const {
    std::vector<std::string> arguments = {"generate",  "a cat",     "--model",       model,      "--seed=1",
                                          "--steps=4", "--size=64", "--certify=off", "--output", folder_ / name};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Run(arguments);
  }

  server::DecodedImage Decoded(const std::string& name) const {
    absl::StatusOr<server::DecodedImage> image = server::DecodeImage(BytesOf(folder_ / name));
    EXPECT_TRUE(image.ok()) << image.status();
    return image.ok() ? *std::move(image) : server::DecodedImage();
  }

  // Writes a PNG.
  void Write(const std::string& name, const control::Frames& picture) const {
    std::ofstream(folder_ / name, std::ios::binary) << *server::EncodeImage(picture, server::ImageFormat::kPng, {});
  }

  static int LargestDifference(const control::Frames& a, const control::Frames& b) {
    EXPECT_TRUE(a.has_shape_of(b));
    int most = 0;
    for (size_t i = 0; i < std::min(a.bytes.size(), b.bytes.size()); ++i) {
      most = std::max(most, std::abs(int{a.bytes[i]} - int{b.bytes[i]}));
    }
    return most;
  }

  std::string temporary() const { return folder_ / "tmp"; }

  TestFolder folder_;
};

TEST_F(PictureCommandTest, BeginsFromAPictureAtItsStrengthAndIsReplayed) {
  const Result made = Generate("a.png", {"--image", kPicture, "--strength=0.5", "--json"});
  ASSERT_EQ(made.exit_code, 0) << made.errors;
  EXPECT_THAT(made.output, HasSubstr("\"step\":2,\"steps\":2"));
  ASSERT_EQ(Generate("whole.png", {"--image", kPicture, "--strength=1"}).exit_code, 0);
  ASSERT_EQ(Generate("text.png", {}).exit_code, 0);
  const control::Frames image = Decoded("a.png").image;
  EXPECT_GT(LargestDifference(image, Decoded("text.png").image), 16);
  EXPECT_GT(LargestDifference(image, Decoded("whole.png").image), 16);
  EXPECT_TRUE(fs::is_empty(temporary()));

  // The picture is named by a code that its digest does not give away.
  const std::string parameters = Decoded("a.png").parameters;
  EXPECT_THAT(parameters, HasSubstr("Denoising strength: 0.5"));
  const size_t at = parameters.find("Images: ");
  ASSERT_NE(at, std::string::npos) << parameters;
  EXPECT_THAT(parameters.substr(at + 8, 33), MatchesRegex("[0-9a-f]{32},"));

  const Result replayed = Run({"replay", folder_ / "a.png", "--model", kFlux, "--image", kPicture});
  EXPECT_THAT(replayed.output, HasSubstr("identical: every byte of the file")) << replayed.errors;
  EXPECT_THAT(replayed.errors, IsEmpty());
  const Result other = Run({"replay", folder_ / "a.png", "--model", kFlux, "--image", kMask});
  EXPECT_EQ(other.exit_code, 7);
  EXPECT_THAT(other.errors, HasSubstr("the pictures are not those of the image"));
  const Result none = Run({"replay", folder_ / "a.png", "--model", kFlux});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.errors, HasSubstr("the image was made from 1 picture of --image, and 0 are given"));
}

TEST_F(PictureCommandTest, AnotherUserCannotTestWhichPictureWasUsed) {
  ASSERT_EQ(Generate("a.png", {"--image", kPicture}).exit_code, 0);
  const std::string mine = Decoded("a.png").parameters;
  fs::remove_all(folder_ / "data");
  ASSERT_EQ(Generate("b.png", {"--image", kPicture}).exit_code, 0);
  const std::string theirs = Decoded("b.png").parameters;
  EXPECT_NE(mine, theirs);
  EXPECT_EQ(fs::status(folder_ / "data/tessera/picture-key").permissions(), fs::perms(0600));
}

TEST_F(PictureCommandTest, LayoutsMakeTheSameImageFromAPictureAndAMask) {
  ASSERT_EQ(Generate("serial.png", {"--image", kPicture, "--mask", kMask}).exit_code, 0);
  for (const char* layout : {"ring=2", "ulysses=2", "pipe=2"}) {
    ASSERT_EQ(Generate("b.png", {"--image", kPicture, "--mask", kMask, "--overwrite", "--layout", layout}).exit_code,
              0);
    EXPECT_LE(LargestDifference(Decoded("b.png").image, Decoded("serial.png").image), 1) << layout;
  }
}

TEST_F(PictureCommandTest, ATransparentMaskMeansWhatAWhiteOneMeans) {
  control::Frames white{.width = 64, .height = 64, .channels = 3},
      transparent{.width = 64, .height = 64, .channels = 4};
  for (int i = 0; i < 64 * 64; ++i) {
    const bool changes = i % 64 > 20 && i / 64 < 40;
    for (int channel = 0; channel < 3; ++channel) white.bytes.push_back(changes ? 255 : 0);
    for (int channel = 0; channel < 3; ++channel) transparent.bytes.push_back(77);
    transparent.bytes.push_back(changes ? 0 : 255);
  }
  Write("white.png", white);
  Write("transparent.png", transparent);
  ASSERT_EQ(Generate("a.png", {"--image", kPicture, "--mask", folder_ / "white.png"}).exit_code, 0);
  ASSERT_EQ(Generate("b.png", {"--image", kPicture, "--mask", folder_ / "transparent.png"}).exit_code, 0);
  ASSERT_EQ(Generate("c.png", {"--image", kPicture}).exit_code, 0);
  EXPECT_EQ(Decoded("a.png").image.bytes, Decoded("b.png").image.bytes);
  EXPECT_GT(LargestDifference(Decoded("a.png").image, Decoded("c.png").image), 16);
}

TEST_F(PictureCommandTest, SaysWhatIsWrongAndLeavesNothing) {
  std::ofstream(folder_ / "text.png") << "no picture";
  std::ofstream(folder_ / "cut.png", std::ios::binary) << BytesOf(kPicture).substr(0, 900);
  const struct {
    std::vector<std::string> options;
    const char* model;
    const char* message;
  } cases[] = {
      {{"--image", kPicture}, "tests/golden/pipelines/pixart_sigma", "this model makes images from text alone"},
      {{"--image", kPicture}, "tests/golden/pipelines/dit", "this model makes images from text alone"},
      {{"--mask", kMask}, kFlux, "mask is given without an image"},
      {{"--strength=0.5"}, kFlux, "strength is given without an image"},
      {{"--image", kPicture, "--strength=0"}, kFlux, "strength is 0; valid values are above 0, up to 1"},
      {{"--image", kPicture, "--strength=1.5"}, kFlux, "strength is 1.5; it must be a number from 0 to 1"},
      {{"--image", kPicture, "--image", kPicture}, kFlux, "images are 2; this model takes one"},
      {{"--image", folder_ / "none.png"}, kFlux, "--image: "},
      {{"--image", folder_ / "text.png"}, kFlux, "--image: "},
      {{"--image", folder_ / "cut.png"}, kFlux, "--image: "},
      {{"--image", kPicture, "--mask", folder_ / "cut.png"}, kFlux, "--mask: "},
      {{"--image", kPicture, "--server", "http://127.0.0.1:1"},
       kFlux,
       "--image, --mask and --strength cannot be given"},
  };
  for (const auto& [options, model, message] : cases) {
    const Result result = Generate("a.png", options, model);
    EXPECT_EQ(result.exit_code, 2) << message << result.errors;
    EXPECT_THAT(result.errors, HasSubstr(message));
    EXPECT_FALSE(fs::exists(folder_ / "a.png"));
    EXPECT_TRUE(fs::is_empty(temporary())) << message;
  }
}

}  // namespace
}  // namespace tessera
