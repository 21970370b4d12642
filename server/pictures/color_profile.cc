#include "server/pictures/color_profile.h"

#include <lcms2.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <type_traits>
#include <vector>

namespace tessera::server {
namespace {

struct CloseProfile {
  void operator()(void* profile) const { cmsCloseProfile(profile); }
};
struct DeleteTransform {
  void operator()(void* transform) const { cmsDeleteTransform(transform); }
};
struct DeleteContext {
  void operator()(std::remove_pointer_t<cmsContext>* context) const { cmsDeleteContext(context); }
};
using Profile = std::unique_ptr<void, CloseProfile>;
using Transform = std::unique_ptr<void, DeleteTransform>;
using Context = std::unique_ptr<std::remove_pointer_t<cmsContext>, DeleteContext>;

// Returns whether the transform of RGB changes no colour of a grid by more than one level.
bool KeepsColors(cmsHTRANSFORM transform) {
  constexpr int kSteps = 9;
  std::vector<uint8_t> colors, converted(size_t{3} * kSteps * kSteps * kSteps);
  const auto level = [](int step) { return static_cast<uint8_t>(step * 255 / (kSteps - 1)); };
  for (int i = 0; i < kSteps * kSteps * kSteps; ++i) {
    colors.insert(colors.end(), {level(i % kSteps), level(i / kSteps % kSteps), level(i / kSteps / kSteps)});
  }
  cmsDoTransform(transform, colors.data(), converted.data(), static_cast<cmsUInt32Number>(colors.size() / 3));
  for (size_t i = 0; i < colors.size(); ++i) {
    if (std::abs(int{colors[i]} - int{converted[i]}) > 1) return false;
  }
  return true;
}

// Converts each row with `transform`, which takes `in` bytes a pixel and gives RGB. Other bytes of a pixel stay.
void ConvertRows(cmsHTRANSFORM transform, size_t in, control::Frames& image) {
  const auto width = static_cast<size_t>(image.width);
  const auto channels = static_cast<size_t>(image.channels);
  std::vector<uint8_t> source(in * width), converted(3 * width);
  for (size_t y = 0; y < image.rows(); ++y) {
    uint8_t* const row = image.bytes.data() + y * image.row_bytes();
    for (size_t x = 0; x < width; ++x) std::memcpy(source.data() + in * x, row + channels * x, in);
    cmsDoTransform(transform, source.data(), converted.data(), static_cast<cmsUInt32Number>(width));
    for (size_t x = 0; x < width; ++x) std::memcpy(row + channels * x, converted.data() + 3 * x, 3);
  }
}

// Removes the fourth channel.
void DropFourth(control::Frames& image) {
  const size_t pixels = image.rows() * static_cast<size_t>(image.width);
  for (size_t i = 0; i < pixels; ++i) std::memmove(image.bytes.data() + 3 * i, image.bytes.data() + 4 * i, 3);
  image.bytes.resize(3 * pixels);
  image.channels = 3;
}

struct PixelKind {
  cmsUInt32Number type = 0;  // 0: the profile does not fit
  size_t bytes = 0;
};

// Returns how pixels enter a transform from the profile's colour space.
PixelKind KindOf(cmsColorSpaceSignature space, SourceColor color) {
  if (color == SourceColor::kCmyk) return space == cmsSigCmykData ? PixelKind{TYPE_CMYK_8, 4} : PixelKind{};
  if (space == cmsSigRgbData) return {TYPE_RGB_8, 3};  // also for grey, which is stored as RGB
  if (space == cmsSigGrayData && color == SourceColor::kGrey) return {TYPE_GRAY_8, 1};
  return {};
}

bool DescribesPixels(cmsProfileClassSignature kind) {
  return kind == cmsSigInputClass || kind == cmsSigDisplayClass || kind == cmsSigOutputClass ||
         kind == cmsSigColorSpaceClass;
}

}  // namespace

absl::Status ConvertToSrgb(std::string_view profile, SourceColor color, control::Frames& image) {
  const Context context(cmsCreateContext(nullptr, nullptr));
  if (context == nullptr) return absl::ResourceExhaustedError("there is not enough memory to convert the colours");
  cmsSetLogErrorHandlerTHR(context.get(), [](cmsContext, cmsUInt32Number, const char*) {});
  const Profile from(
      cmsOpenProfileFromMemTHR(context.get(), profile.data(), static_cast<cmsUInt32Number>(profile.size())));
  if (from == nullptr) return absl::InvalidArgumentError("the picture's colour profile is damaged");
  const PixelKind kind = KindOf(cmsGetColorSpace(from.get()), color);
  if (kind.type == 0 || !DescribesPixels(cmsGetDeviceClass(from.get()))) {
    return absl::InvalidArgumentError("the picture's colour profile does not fit its pixels");
  }
  const Profile to(cmsCreate_sRGBProfileTHR(context.get()));
  if (to == nullptr) return absl::ResourceExhaustedError("there is not enough memory to convert the colours");
  const Transform transform(
      cmsCreateTransformTHR(context.get(), from.get(), kind.type, to.get(), TYPE_RGB_8, INTENT_PERCEPTUAL, 0));
  if (transform == nullptr) return absl::InvalidArgumentError("the picture's colour profile cannot be converted");
  if (kind.type != TYPE_RGB_8 || !KeepsColors(transform.get())) ConvertRows(transform.get(), kind.bytes, image);
  if (color == SourceColor::kCmyk) DropFourth(image);
  return absl::OkStatus();
}

void ConvertInkToRgb(control::Frames& image) {
  for (size_t i = 0; i < image.bytes.size(); i += 4) {
    const uint32_t light = 255 - image.bytes[i + 3];
    for (size_t c = 0; c < 3; ++c) {
      const uint32_t absorbed = (light * image.bytes[i + c] + 127) / 255;
      image.bytes[i + c] = static_cast<uint8_t>(light - absorbed);
    }
  }
  DropFourth(image);
}

}  // namespace tessera::server
