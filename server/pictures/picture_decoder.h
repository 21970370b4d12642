// PictureDecoder decodes pictures from untrusted sources, each in a new process (tessera-picture-decoder) that is
// confined before it gets the first byte: no files, no network, no other processes, and bounds on memory, time and
// output. What a picture does to its process ends with it, and no picture is ever decoded without confinement.
//
// Thread-safe. Nothing is written to a disk.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/pictures/decoded_picture.h"

namespace tessera::server {

// The path of tessera-picture-decoder: in the folder of the running program.
std::string PictureDecoderExecutable();

struct PictureDecoderOptions {
  std::string executable = PictureDecoderExecutable();
  PictureLimits limits;
  int processes = 2;                                        // that may run at once, at least 1
  absl::Duration start_timeout = absl::Seconds(20);         // for a process to start and to prove that it is confined
  absl::Duration decode_timeout = absl::Seconds(60);        // for one picture, after that
  absl::Duration free_process_timeout = absl::Seconds(60);  // for waiting until fewer than `processes` run
};

class PictureDecoder {
 public:
  // Starts a process, checks that it is confined, and decodes a small picture with it. FAILED_PRECONDITION if this
  // system does not let a process confine itself, and UNAVAILABLE if the process cannot be started: then pictures must
  // be refused.
  [[nodiscard]] static absl::StatusOr<std::unique_ptr<PictureDecoder>> Start(PictureDecoderOptions options);

  PictureDecoder(const PictureDecoder&) = delete;
  PictureDecoder& operator=(const PictureDecoder&) = delete;

  // Returns as DecodePicture does (decode_picture.h). INVALID_ARGUMENT also if decoding ended the process.
  // RESOURCE_EXHAUSTED also if decoding exceeded a bound of the process. UNAVAILABLE: no process was free or could be
  // started in time. FAILED_PRECONDITION: the new process is not confined. Waits at most for the sum of the timeouts.
  [[nodiscard]] absl::StatusOr<DecodedPicture> Decode(std::string_view bytes);

 private:
  explicit PictureDecoder(PictureDecoderOptions options) : options_(std::move(options)) {}

  const PictureDecoderOptions options_;

  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;  // guarded by mutex_
};

}  // namespace tessera::server
