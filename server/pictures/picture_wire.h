// What PictureDecoder and its confined process exchange over their socket: the process sends Ready once it is confined,
// the decoder a Request and the file's bytes, the process a Reply, then the message of an error or the pixels, and
// ends. Both are the same build on the same machine, so structures are sent as they lie in memory.
#pragma once

#include <cstdint>

namespace tessera::server::picture_wire {

inline constexpr uint32_t kReadyMagic = 0x31525054;    // "TPR1"
inline constexpr uint32_t kRequestMagic = 0x31515054;  // "TPQ1"
inline constexpr uint32_t kReplyMagic = 0x31415054;    // "TPA1"
inline constexpr uint32_t kMaxMessageBytes = 500;

struct Ready {
  uint32_t magic = kReadyMagic;
  uint32_t message_bytes = 0;  // above 0: why the process is not confined, as text after this; it then ends
};

struct Request {
  uint32_t magic = kRequestMagic;
  int32_t side = 0;  // the limits of PictureLimits
  int64_t pixels = 0;
  uint64_t file_bytes = 0;
};

struct Reply {
  uint32_t magic = kReplyMagic;
  int32_t code = 0;  // absl::StatusCode
  uint32_t message_bytes = 0;
  int32_t width = 0;
  int32_t height = 0;
  int32_t channels = 0;
  uint8_t format = 0;  // ImageFormat
  uint8_t animated = 0;
  uint8_t had_alpha = 0;
  uint8_t had_profile = 0;
  uint32_t padding = 0;
  uint64_t pixel_bytes = 0;
};

}  // namespace tessera::server::picture_wire
