// Checks any bytes as a picture with all its pixels. An accepted picture must be within the limits.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "control/pictures/picture.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto picture = tessera::control::InspectPicture(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!picture.ok()) return 0;
  if (picture->width < 1 || picture->height < 1) std::abort();
  if (picture->width > tessera::control::kMaxPictureSide || picture->height > tessera::control::kMaxPictureSide) {
    std::abort();
  }
  return 0;
}
