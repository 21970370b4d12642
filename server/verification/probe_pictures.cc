#include "server/verification/probe_pictures.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/atomic_file.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "control/pictures/picture_frames.h"
#include "control/pictures/picture_input.h"
#include "server/pictures/picture_pixels.h"

namespace tessera::server {
namespace {

namespace fs = std::filesystem;

constexpr int kSide = 64;

// Returns a picture of slopes, or a mask of its right half.
control::Frames MadeUp(bool is_mask) {
  control::Frames frame{.width = kSide, .height = kSide};
  for (int y = 0; y < kSide; ++y) {
    for (int x = 0; x < kSide; ++x) {
      const int half = x < kSide / 2 ? 0 : 255;
      for (const int value : {4 * x, 4 * y, 2 * (x + y)}) {
        frame.bytes.push_back(static_cast<uint8_t>(is_mask ? half : value));
      }
    }
  }
  return frame;
}

}  // namespace

absl::StatusOr<ProbePictures> ProbePictures::For(const control::PictureRules& model) {
  ProbePictures pictures;
  if (!model.required) return pictures;
  std::error_code error;
  const fs::path parent = fs::temp_directory_path(error);
  std::string name = (parent / "tessera-probe-XXXXXX").string();
  if (error || mkdtemp(name.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("no folder for pictures can be made in ", parent.string()));
  }
  pictures.folder_ = name;
  ASSIGN_OR_RETURN(const control::PictureUse image, pictures.Write(MadeUp(/*is_mask=*/false)));
  pictures.images_ = {image};
  if (model.use != control::PictureInput::kFill) return pictures;
  ASSIGN_OR_RETURN(const control::PictureUse mask, pictures.Write(MadeUp(/*is_mask=*/true)));
  pictures.mask_ = {mask};
  return pictures;
}

absl::StatusOr<control::PictureUse> ProbePictures::Write(const control::Frames& picture) const {
  ASSIGN_OR_RETURN(const std::string bytes, EncodeStoredPicture(picture));
  const std::string digest = absl::BytesToHexString(base::Sha256Of(bytes));
  const std::string file = absl::StrCat(folder_, "/", digest, ".png");
  RETURN_IF_ERROR(base::WriteFileAtomically(file, bytes, {.owner_only = true}));
  return control::PictureUse{.digest = digest, .width = picture.width, .height = picture.height, .file = file};
}

ProbePictures::~ProbePictures() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

}  // namespace tessera::server
