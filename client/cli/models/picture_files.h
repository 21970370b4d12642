// Defines the command-line options of pictures, and prepares the files that they name for the workers of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "control/parameters/picture_use.h"
#include "control/pictures/picture_frames.h"

namespace tessera::control {
enum class PictureInput : uint8_t;
}

namespace tessera::client {

struct PictureOptions {
  std::vector<std::string> images;
  std::string mask;
  std::string strength;
};

// The members of a job's parameters.
struct GivenPictures {
  std::vector<control::PictureUse> images, mask;
  double strength = 1;
};

// The values must live as long as `app`.
void AddPictureOptions(CLI::App& app, PictureOptions& options);

// The secret of this user with which images name the pictures that they were made from (server::PictureNames). The
// first call creates it, in the folder of this user's data; if that fails, it is a key that nothing else has.
std::string PictureKey();

// A private folder with the pictures in the form in which workers read them: RGB, upright, without metadata. The
// destructor removes it. Movable.
class PictureFiles final {
 public:
  PictureFiles() = default;
  PictureFiles(PictureFiles&& other) noexcept : folder_(std::move(other.folder_)) { other.folder_.clear(); }
  PictureFiles& operator=(PictureFiles&&) = delete;
  ~PictureFiles();

  // Returns the pictures, and their strength, by default the usual one of the model. Errors begin with the option:
  // INVALID_ARGUMENT or DATA_LOSS if a file is no picture or is damaged, NOT_FOUND and other errors of reading it,
  // UNAVAILABLE if nothing can be written.
  absl::StatusOr<GivenPictures> Read(const PictureOptions& options, control::PictureInput model);

 private:
  absl::StatusOr<control::PictureUse> Add(const std::string& path, const char* option);
  absl::StatusOr<control::PictureUse> AddMask(const std::string& path);
  absl::StatusOr<control::PictureUse> Store(const control::Frames& picture);

  std::string folder_;  // empty until the first picture
};

}  // namespace tessera::client
