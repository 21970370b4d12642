#include "control/pictures/mask.h"

#include <cstddef>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"

namespace tessera::control {
namespace {

Frames BlankGray(int width, int height) {
  Frames gray{.width = width, .height = height, .channels = 1, .bytes = {}};
  gray.bytes.resize(static_cast<size_t>(width) * static_cast<size_t>(height));
  return gray;
}

absl::Status CheckGray(const Frames& mask) {
  RETURN_IF_ERROR(CheckFrame(mask, "the mask"));
  return mask.channels == 1 ? absl::OkStatus() : absl::InvalidArgumentError("the mask must be gray");
}

absl::Status CheckMultiple(const Frames& mask, int factor) {
  RETURN_IF_ERROR(CheckGray(mask));
  if (mask.width % factor == 0 && mask.height % factor == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the mask has ", mask.width, "x", mask.height, " pixels; its sides must be multiples of ", factor));
}

}  // namespace

absl::StatusOr<Frames> ToGray(const Frames& picture) {
  RETURN_IF_ERROR(CheckFrame(picture, "the picture"));
  if (picture.channels == 1) return picture;
  Frames gray = BlankGray(picture.width, picture.height);
  const uint8_t* pixel = picture.bytes.data();
  for (uint8_t& value : gray.bytes) {
    value = static_cast<uint8_t>((19595u * pixel[0] + 38470u * pixel[1] + 7471u * pixel[2] + 32768u) >> 16);
    pixel += 3;
  }
  return gray;
}

absl::StatusOr<Frames> BinarizeMask(const Frames& gray) {
  RETURN_IF_ERROR(CheckGray(gray));
  Frames binary = gray;
  for (uint8_t& value : binary.bytes) value = (value >= 128) != base::Planted("mask_inverted") ? 1 : 0;
  return binary;
}

absl::StatusOr<Frames> PrepareMask(const Frames& mask, int width, int height, FitMode mode) {
  ASSIGN_OR_RETURN(const Frames fitted, FitPicture(mask, width, height, mode));
  ASSIGN_OR_RETURN(const Frames gray, ToGray(fitted));
  return BinarizeMask(gray);
}

absl::StatusOr<Frames> MaskOfLatents(const Frames& binary) {
  RETURN_IF_ERROR(CheckMultiple(binary, 8));
  Frames latents = BlankGray(binary.width / 8, binary.height / 8);
  auto out = latents.bytes.begin();
  for (int y = 0; y < binary.height; y += 8) {
    const uint8_t* row = binary.bytes.data() + binary.row_bytes() * static_cast<size_t>(y);
    for (int x = 0; x < binary.width; x += 8) {
      *out++ = base::Planted("mask_averaged") ? (std::accumulate(row + x, row + x + 8, 0) >= 4 ? 1 : 0) : row[x];
    }
  }
  return latents;
}

absl::StatusOr<std::vector<uint8_t>> FillMaskFeatures(const Frames& binary) {
  RETURN_IF_ERROR(CheckMultiple(binary, 16));
  std::vector<uint8_t> features(binary.bytes.size());
  auto token = features.begin();
  for (int top = 0; top < binary.height; top += 16) {
    for (int left = 0; left < binary.width; left += 16) {
      for (int y = 0; y < 16; ++y) {
        const uint8_t* row = binary.bytes.data() + binary.row_bytes() * static_cast<size_t>(top + y) + left;
        for (int x = 0; x < 16; ++x) token[4 * (8 * (y % 8) + x % 8) + 2 * (y / 8) + x / 8] = row[x];
      }
      token += 256;
    }
  }
  return features;
}

}  // namespace tessera::control
