// ProbePictures holds a made-up picture and its mask for probes of models that make no image without them
// (PictureRules::required), as files that workers read. The destructor removes them. Movable; used by one thread.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "control/parameters/picture_use.h"

namespace tessera::control {
struct Frames;
struct PictureRules;
}  // namespace tessera::control

namespace tessera::server {

class ProbePictures final {
 public:
  // Makes the files, always with the same bytes; none for other models. UNAVAILABLE if they cannot be written.
  static absl::StatusOr<ProbePictures> For(const control::PictureRules& model);
  ProbePictures(ProbePictures&& other) noexcept
      : folder_(std::exchange(other.folder_, "")), images_(std::move(other.images_)), mask_(std::move(other.mask_)) {}
  ProbePictures& operator=(ProbePictures&&) = delete;
  ~ProbePictures();

  // The members of a job's parameters.
  const std::vector<control::PictureUse>& images() const { return images_; }
  const std::vector<control::PictureUse>& mask() const { return mask_; }

 private:
  ProbePictures() = default;
  absl::StatusOr<control::PictureUse> Write(const control::Frames& picture) const;

  std::string folder_;  // empty: no files
  std::vector<control::PictureUse> images_, mask_;
};

}  // namespace tessera::server
