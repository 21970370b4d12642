#include "server/pictures/serve_picture.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>
#include <string>

#include "absl/strings/numbers.h"
#include "server/pictures/confinement.h"
#include "server/pictures/picture_wire.h"

namespace tessera::server {
namespace {

constexpr int kFailed = 1;

bool ReadAll(void* to, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t got = read(STDIN_FILENO, static_cast<char*>(to) + done, size - done);
    if (got == 0 || (got < 0 && errno != EINTR)) return false;
    if (got > 0) done += static_cast<size_t>(got);
  }
  return true;
}

bool WriteAll(const void* from, size_t size) {
  for (size_t done = 0; done < size;) {
    const ssize_t put = write(STDOUT_FILENO, static_cast<const char*>(from) + done, size - done);
    if (put < 0 && errno != EINTR) return false;
    if (put > 0) done += static_cast<size_t>(put);
  }
  return true;
}

// Messages are cut, and control characters in them, which a library may quote from the file, are replaced.
std::string MessageOf(const absl::Status& status) {
  std::string message(status.message().substr(0, picture_wire::kMaxMessageBytes));
  for (char& c : message) {
    if (c < ' ' || c > '~') c = '?';
  }
  return message;
}

// The largest memory is that of a progressive CMYK JPEG: 8 bytes a pixel of coefficients and 4 of result, of which the
// picture as displayed may need a copy.
ConfinementLimits LimitsFor(uint64_t file_bytes, uint64_t pixels) {
  constexpr uint64_t kProgramBytes = uint64_t{256} << 20;
  constexpr uint64_t kBytesPerPixel = 16;
  constexpr uint64_t kProcessorSeconds = 30;
  return {.memory_bytes = kProgramBytes + 2 * file_bytes + kBytesPerPixel * pixels,
          .processor_seconds = kProcessorSeconds};
}

bool SendError(const absl::Status& error) {
  const std::string message = MessageOf(error);
  picture_wire::Reply reply;
  reply.code = static_cast<int32_t>(error.code());
  reply.message_bytes = static_cast<uint32_t>(message.size());
  return WriteAll(&reply, sizeof(reply)) && WriteAll(message.data(), message.size());
}

bool SendPicture(const DecodedPicture& picture) {
  picture_wire::Reply reply;
  reply.width = picture.frames.width;
  reply.height = picture.frames.height;
  reply.channels = picture.frames.channels;
  reply.format = static_cast<uint8_t>(picture.facts.format);
  reply.animated = picture.facts.animated;
  reply.had_alpha = picture.facts.had_alpha;
  reply.had_profile = picture.facts.had_profile;
  reply.pixel_bytes = picture.frames.bytes.size();
  return WriteAll(&reply, sizeof(reply)) && WriteAll(picture.frames.bytes.data(), picture.frames.bytes.size());
}

bool SendReady(const absl::Status& confined) {
  const std::string message = confined.ok() ? "" : MessageOf(confined);
  picture_wire::Ready ready;
  ready.message_bytes = static_cast<uint32_t>(message.size());
  return WriteAll(&ready, sizeof(ready)) && WriteAll(message.data(), message.size());
}

}  // namespace

int ServePicture(const char* file_bytes, const char* pixels, DecodeFunction decode) {
  uint64_t max_file_bytes = 0, max_pixels = 0;
  if (!absl::SimpleAtoi(file_bytes, &max_file_bytes) || !absl::SimpleAtoi(pixels, &max_pixels)) return kFailed;
  const absl::Status confined = ConfineThisProcess(LimitsFor(max_file_bytes, max_pixels));
  if (!SendReady(confined) || !confined.ok()) return kFailed;

  picture_wire::Request request;
  if (!ReadAll(&request, sizeof(request)) || request.magic != picture_wire::kRequestMagic ||
      request.file_bytes > max_file_bytes) {
    return kFailed;
  }
  std::string file;
  try {
    file.resize(request.file_bytes);
  } catch (const std::bad_alloc&) {
    return SendError(absl::ResourceExhaustedError("there is not enough memory to read the picture")) ? 0 : kFailed;
  }
  if (!ReadAll(file.data(), file.size())) return kFailed;
  const absl::StatusOr<DecodedPicture> picture =
      decode(file, {.file_bytes = max_file_bytes, .side = request.side, .pixels = request.pixels});
  return (picture.ok() ? SendPicture(*picture) : SendError(picture.status())) ? 0 : kFailed;
}

}  // namespace tessera::server
