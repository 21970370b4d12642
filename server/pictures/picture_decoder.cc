#include "server/pictures/picture_decoder.h"

#include <limits.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "server/pictures/confined_process.h"
#include "server/pictures/picture_wire.h"

namespace tessera::server {
namespace {

absl::Status NotConfined(const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("pictures cannot be decoded on this system, because the decoder cannot be confined: ", why));
}

bool IsPrintable(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Receives a message of the confined process, which is not believed to be text.
absl::StatusOr<std::string> ReceiveMessage(ConfinedProcess& process, uint32_t bytes, absl::Duration deadline) {
  if (bytes > picture_wire::kMaxMessageBytes) return absl::InternalError("the message is too long");
  std::string message(bytes, '\0');
  RETURN_IF_ERROR(process.Receive(message.data(), message.size(), deadline));
  if (!IsPrintable(message)) return absl::InternalError("the message is not text");
  return message;
}

absl::Status CheckReady(ConfinedProcess& process, absl::Duration deadline) {
  picture_wire::Ready ready;
  const absl::Status received = process.Receive(&ready, sizeof(ready), deadline);
  if (absl::IsAborted(received)) {
    return absl::UnavailableError("the picture decoder ended while it started");
  }
  RETURN_IF_ERROR(received);
  if (ready.magic != picture_wire::kReadyMagic) return absl::UnavailableError("the picture decoder is another program");
  if (ready.message_bytes > 0) {
    ASSIGN_OR_RETURN(const std::string why, ReceiveMessage(process, ready.message_bytes, deadline));
    return NotConfined(why);
  }
  const absl::Status confined = process.CheckConfined();
  return confined.ok() ? confined : NotConfined(std::string(confined.message()));
}

absl::StatusOr<ConfinedProcess> StartConfined(const PictureDecoderOptions& options) {
  ASSIGN_OR_RETURN(ConfinedProcess process,
                   ConfinedProcess::Start({options.executable, absl::StrCat(options.limits.file_bytes),
                                           absl::StrCat(options.limits.pixels)}));
  const absl::Status ready = CheckReady(process, base::SteadyNow() + options.start_timeout);
  if (absl::IsDeadlineExceeded(ready)) return absl::UnavailableError("the picture decoder did not start in time");
  if (!ready.ok()) return ready;
  return process;
}

// Whether a reply can be what the wire allows. Everything in it may be invented by a picture that controls the process.
bool IsPossible(const picture_wire::Reply& reply, const PictureLimits& limits) {
  return reply.width >= 1 && reply.height >= 1 && reply.width <= limits.side && reply.height <= limits.side &&
         int64_t{reply.width} * reply.height <= limits.pixels && (reply.channels == 3 || reply.channels == 4) &&
         reply.format <= static_cast<uint8_t>(ImageFormat::kWebp) && reply.message_bytes == 0 && reply.animated <= 1 &&
         reply.had_profile <= 1 && reply.had_alpha == (reply.channels == 4 ? 1 : 0) &&
         reply.pixel_bytes == static_cast<uint64_t>(int64_t{reply.width} * reply.height * reply.channels);
}

// Returns the error that a picture deserves; OK if the reply states none.
absl::Status ReceiveError(ConfinedProcess& process, const picture_wire::Reply& reply, absl::Duration deadline) {
  if (reply.magic != picture_wire::kReplyMagic) return absl::InternalError("it is not a reply");
  const auto code = static_cast<absl::StatusCode>(reply.code);
  if (code == absl::StatusCode::kOk) return absl::OkStatus();
  ASSIGN_OR_RETURN(const std::string message, ReceiveMessage(process, reply.message_bytes, deadline));
  if (code != absl::StatusCode::kInvalidArgument && code != absl::StatusCode::kDataLoss &&
      code != absl::StatusCode::kResourceExhausted) {
    return absl::InternalError("the reply has another error");
  }
  return absl::Status(code, message);
}

absl::StatusOr<DecodedPicture> Exchange(ConfinedProcess& process, std::string_view bytes, const PictureLimits& limits,
                                        absl::Duration deadline) {
  picture_wire::Request request;
  request.side = limits.side;
  request.pixels = limits.pixels;
  request.file_bytes = bytes.size();
  RETURN_IF_ERROR(process.Send(&request, sizeof(request), deadline));
  RETURN_IF_ERROR(process.Send(bytes.data(), bytes.size(), deadline));
  picture_wire::Reply reply;
  RETURN_IF_ERROR(process.Receive(&reply, sizeof(reply), deadline));
  RETURN_IF_ERROR(ReceiveError(process, reply, deadline));
  if (!IsPossible(reply, limits)) return absl::InternalError("the reply is not possible");
  DecodedPicture picture;
  picture.frames = {.width = reply.width, .height = reply.height, .channels = reply.channels, .bytes = {}};
  picture.frames.bytes.resize(reply.pixel_bytes);
  picture.facts = {.format = static_cast<ImageFormat>(reply.format),
                   .animated = reply.animated != 0,
                   .had_alpha = reply.had_alpha != 0,
                   .had_profile = reply.had_profile != 0};
  RETURN_IF_ERROR(process.Receive(picture.frames.bytes.data(), picture.frames.bytes.size(), deadline));
  ASSIGN_OR_RETURN(const bool ended_well, process.EndsWell(deadline));
  if (!ended_well) return absl::InternalError("the process did not end as it should");
  return picture;
}

absl::StatusOr<DecodedPicture> DecodeIn(ConfinedProcess& process, std::string_view bytes,
                                        const PictureDecoderOptions& options) {
  absl::StatusOr<DecodedPicture> picture =
      Exchange(process, bytes, options.limits, base::SteadyNow() + options.decode_timeout);
  if (absl::IsDeadlineExceeded(picture.status())) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the picture takes longer than ", absl::FormatDuration(options.decode_timeout), " to decode"));
  }
  if (absl::IsAborted(picture.status())) {
    // The socket closes before the process can be waited for, so its end is not yet forced.
    return process.End() == SIGXCPU
               ? absl::ResourceExhaustedError("the picture takes too much processor time to decode")
               : absl::InvalidArgumentError("the picture cannot be decoded: it ended the process that decodes it");
  }
  if (absl::IsInternal(picture.status())) {
    return absl::InvalidArgumentError("the picture cannot be decoded: its decoder replied something impossible");
  }
  return picture;
}

absl::StatusOr<DecodedPicture> DecodeInNewProcess(std::string_view bytes, const PictureDecoderOptions& options) {
  try {
    ASSIGN_OR_RETURN(ConfinedProcess process, StartConfined(options));
    return DecodeIn(process, bytes, options);
  } catch (const std::bad_alloc&) {
    return absl::UnavailableError("there is not enough memory for the picture");
  }
}

}  // namespace

std::string PictureDecoderExecutable() {
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  const std::string path(self, length > 0 ? static_cast<size_t>(length) : 0);
  return absl::StrCat(path.substr(0, path.rfind('/') + 1), "tessera-picture-decoder");
}

absl::StatusOr<std::unique_ptr<PictureDecoder>> PictureDecoder::Start(PictureDecoderOptions options) {
  std::unique_ptr<PictureDecoder> decoder(new PictureDecoder(std::move(options)));
  // A black pixel.
  static constexpr unsigned char kSmallPicture[] = {
      0x89, 'P',  'N',  'G',  '\r', '\n', 0x1A, '\n', 0,    0,    0,    13,  'I',  'H',  'D',  'R',  0,
      0,    0,    1,    0,    0,    0,    1,    8,    0,    0,    0,    0,   0x3A, 0x7E, 0x9B, 0x55, 0,
      0,    0,    10,   'I',  'D',  'A',  'T',  0x78, 0x9C, 0x63, 0x60, 0,   0,    0,    2,    0,    1,
      0x48, 0xAF, 0xA4, 0x71, 0,    0,    0,    0,    'I',  'E',  'N',  'D', 0xAE, 0x42, 0x60, 0x82};
  const absl::StatusOr<DecodedPicture> picture =
      decoder->Decode(std::string_view(reinterpret_cast<const char*>(kSmallPicture), sizeof(kSmallPicture)));
  if (absl::IsFailedPrecondition(picture.status()) || absl::IsUnavailable(picture.status())) return picture.status();
  if (!picture.ok()) {
    return NotConfined(absl::StrCat("it decodes nothing under confinement (", picture.status().message(), ")"));
  }
  return decoder;
}

absl::StatusOr<DecodedPicture> PictureDecoder::Decode(std::string_view bytes) {
  if (bytes.size() > options_.limits.file_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the picture has ", bytes.size(), " bytes; at most ", options_.limits.file_bytes, " are read"));
  }
  {
    std::unique_lock<std::mutex> lock(mutex_);
    if (!ended_.wait_for(lock, absl::ToChronoNanoseconds(options_.free_process_timeout),
                         [this] { return running_ < std::max(options_.processes, 1); })) {
      return absl::UnavailableError("too many pictures are being decoded");
    }
    ++running_;
  }
  absl::StatusOr<DecodedPicture> picture = DecodeInNewProcess(bytes, options_);
  std::lock_guard<std::mutex> lock(mutex_);
  --running_;
  ended_.notify_one();
  return picture;
}

}  // namespace tessera::server
