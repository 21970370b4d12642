// Fuzz test: for any bytes, DecodePicture returns a picture within its limits whose stored form has the same pixels, or
// one of its documented errors.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/image/image_file.h"
#include "server/pictures/decode_picture.h"
#include "server/pictures/picture_pixels.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace tessera;  // NOLINT(google-build-using-namespace)
  const server::PictureLimits limits = {.file_bytes = 1 << 20, .side = 2000, .pixels = 1 << 20};
  const absl::StatusOr<server::DecodedPicture> picture =
      server::DecodePicture(std::string_view(reinterpret_cast<const char*>(data), size), limits);
  if (!picture.ok()) {
    const absl::Status& error = picture.status();
    if (absl::IsInvalidArgument(error) || absl::IsDataLoss(error) || absl::IsResourceExhausted(error)) return 0;
    std::abort();
  }
  const control::Frames& frames = picture->frames;
  if (frames.width < 1 || frames.height < 1 || frames.width > limits.side || frames.height > limits.side ||
      frames.count != 1 || frames.channels != (picture->facts.had_alpha ? 4 : 3) ||
      frames.bytes.size() != frames.rows() * frames.row_bytes()) {
    std::abort();
  }
  const control::Frames opaque = server::OnWhite(frames);
  const absl::StatusOr<std::string> stored = server::EncodeStoredPicture(opaque);
  if (!stored.ok()) std::abort();
  const absl::StatusOr<server::DecodedPicture> again = server::DecodePicture(*stored, limits);
  if (!again.ok() || again->frames.bytes != opaque.bytes || again->facts != server::PictureFacts{}) std::abort();
  return 0;
}
