#include "runtime/engine/job_pictures.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/made_up_frames.h"
#include "control/pictures/picture.h"
#include "control/pictures/picture_input.h"

namespace tessera::runtime {
namespace {

constexpr int kSide = 64;

std::string PathOf(const char* name) { return absl::StrCat("tests/golden-inputs/images/", name); }

std::string BytesOf(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

control::PictureUse Use(const char* name) {
  const std::string bytes = BytesOf(PathOf(name));
  const absl::StatusOr<control::Frames> frames = control::DecodePicture(bytes);
  EXPECT_TRUE(frames.ok()) << frames.status();
  return {.digest = absl::BytesToHexString(base::Sha256Of(bytes)),
          .width = frames.ok() ? frames->width : 0,
          .height = frames.ok() ? frames->height : 0,
          .file = PathOf(name)};
}

absl::StatusOr<JobPictures> Read() {
  return ReadPictures(std::vector{Use("square.png")}, std::vector{Use("mask_hard.png")}, control::kStartsFromPicture,
                      kSide, kSide);
}

TEST(JobPicturesTest, PromptsOfEditPlusHoldSmallerPicturesThanItsModelReads) {
  const std::vector<control::PictureUse> images = {Use("square.png")};
  for (const control::PictureRules& rules : {control::kQwenEditPictures, control::kQwenEditPlusPictures}) {
    const absl::StatusOr<JobPictures> pictures = ReadPictures(images, {}, rules, kSide, kSide);
    ASSERT_TRUE(pictures.ok()) << pictures.status();
    EXPECT_EQ(pictures->inputs.pictures.at(0).size(2), 1024);
    ASSERT_EQ(pictures->of_prompt.size(), 1);
    EXPECT_EQ(pictures->of_prompt[0].width, rules == control::kQwenEditPictures ? 1024 : 384);
    const absl::StatusOr<std::vector<control::Frames>> alone = ReadPromptPictures(images, rules);
    ASSERT_TRUE(alone.ok()) << alone.status();
    EXPECT_EQ(alone->at(0).bytes, pictures->of_prompt[0].bytes);
  }
  EXPECT_TRUE(ReadPictures(images, {}, control::kKontextPictures, kSide, kSide)->of_prompt.empty());
  EXPECT_TRUE(ReadPromptPictures(images, control::kKontextPictures)->empty());
}

// The blur of a binary mask by its definition: a Gaussian of 4 pixels; beyond the border the nearest pixel counts.
double BlurredAt(const std::vector<float>& binary, int x, int y) {
  constexpr int kReach = 20;
  double sum = 0, weights = 0;
  for (int dy = -kReach; dy <= kReach; ++dy) {
    for (int dx = -kReach; dx <= kReach; ++dx) {
      const double weight = std::exp(-(dx * dx + dy * dy) / 32.0);
      const int row = std::clamp(y + dy, 0, kSide - 1), column = std::clamp(x + dx, 0, kSide - 1);
      sum += weight * (binary[static_cast<size_t>(row * kSide + column)] > 0 ? 255 : 0);
      weights += weight;
    }
  }
  return sum / weights;
}

TEST(JobPicturesTest, TheKeptPixelsAreThoseOutsideTheMaskBlurredByAGaussian) {
  const absl::StatusOr<JobPictures> pictures = Read();
  ASSERT_TRUE(pictures.ok()) << pictures.status();
  ASSERT_TRUE(pictures->kept.has_value());
  const at::Tensor mask = pictures->inputs.mask.contiguous();
  const std::vector<float> binary(mask.data_ptr<float>(), mask.data_ptr<float>() + mask.numel());
  ASSERT_EQ(binary.size(), static_cast<size_t>(kSide * kSide));
  const absl::StatusOr<control::Frames> picture =
      control::Resize(*control::DecodePicture(BytesOf(PathOf("square.png"))), kSide, kSide);
  ASSERT_TRUE(picture.ok()) << picture.status();
  const control::Frames image = control::NoiseFrame(kSide, kSide, 3);
  const absl::StatusOr<control::Frames> kept = pictures->kept->Over(image);
  ASSERT_TRUE(kept.ok()) << kept.status();
  double largest = 0;
  int mixed = 0;
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const double part = BlurredAt(binary, x, y) / 255;
      mixed += part > 0.1 && part < 0.9;
      for (int channel = 0; channel < 3; ++channel) {
        const auto at = static_cast<size_t>(3 * (y * kSide + x) + channel);
        const double expected = part * image.bytes[at] + (1 - part) * picture->bytes[at];
        largest = std::max(largest, std::abs(expected - kept->bytes[at]));
      }
    }
  }
  // Pillow blurs with three box filters, which differ from a Gaussian by up to 2 percent of the range.
  EXPECT_LE(largest, 6);
  EXPECT_GT(mixed, 100);
}

}  // namespace
}  // namespace tessera::runtime
