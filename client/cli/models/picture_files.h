// Defines the command-line options of pictures, and prepares the files that they name for the workers of this machine.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/cli/models/picture_options.h"
#include "control/parameters/picture_use.h"

namespace tessera::control {
struct Frames;        // control/pictures/picture_frames.h
struct PictureRules;  // control/pictures/picture_input.h
}  // namespace tessera::control

namespace tessera::client {

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
  struct Options {
    std::string parent;  // an existing folder in which the folder is created; empty: that of temporary files
    // What errors call the pictures and the mask.
    const char* image = "--image";
    const char* mask = "--mask";
  };

  PictureFiles() = default;
  explicit PictureFiles(Options options) : options_(std::move(options)) {}
  PictureFiles(PictureFiles&& other) noexcept
      : options_(std::move(other.options_)), folder_(std::exchange(other.folder_, "")) {}
  PictureFiles& operator=(PictureFiles&&) = delete;
  ~PictureFiles();

  // Returns the pictures, and their strength, by default the usual one of the model. Errors begin with what Options
  // calls the picture: INVALID_ARGUMENT or DATA_LOSS if a file is no picture or is damaged, NOT_FOUND and other errors
  // of reading it, UNAVAILABLE if nothing can be written.
  absl::StatusOr<GivenPictures> Read(const PictureOptions& options, const control::PictureRules& model);

 private:
  absl::StatusOr<control::PictureUse> Add(const std::string& path, const char* option);
  absl::StatusOr<control::PictureUse> AddMask(const std::string& path);
  absl::StatusOr<control::PictureUse> Store(const control::Frames& picture);

  Options options_;
  std::string folder_;  // empty until the first picture
};

}  // namespace tessera::client
