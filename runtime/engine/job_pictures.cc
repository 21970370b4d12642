#include "runtime/engine/job_pictures.h"

#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "control/pictures/blur.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/mask.h"
#include "control/pictures/mask_crop.h"
#include "control/pictures/picture.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/reference_size.h"

namespace tessera::runtime {
namespace {

absl::StatusOr<control::Frames> ReadStored(const control::PictureUse& picture, const char* what) {
  const auto lost = [&](absl::string_view reason) {
    return absl::DataLossError(absl::StrCat("the stored file of ", what, " (SHA-256 ", picture.digest, ") ", reason));
  };
  absl::StatusOr<std::string> bytes = control::ReadPictureFile(picture.file);
  if (!bytes.ok()) return lost("cannot be read");
  if (absl::BytesToHexString(base::Sha256Of(*bytes)) != picture.digest) return lost("has changed");
  absl::StatusOr<control::Frames> frames = control::DecodePicture(*bytes);
  if (!frames.ok()) return lost("is not a picture");
  if (frames->width != picture.width || frames->height != picture.height) return lost("has another size");
  return frames;
}

// Returns a binary mask as values of 0 to 255 with soft edges.
absl::StatusOr<control::Frames> Feathered(control::Frames mask) {
  for (uint8_t& value : mask.bytes) value = value == 0 ? 0 : 255;
  return control::GaussianBlur(mask, kMaskFeather);
}

}  // namespace

at::Tensor MaskValues(const control::Frames& binary) {
  return at::from_blob(const_cast<uint8_t*>(binary.bytes.data()), {1, binary.height, binary.width, binary.channels},
                       at::kByte)
      .permute({0, 3, 1, 2})
      .to(at::kFloat)
      .contiguous();
}

absl::StatusOr<control::Frames> KeptPixels::Over(const control::Frames& image) const {
  return control::OverlayPicture(mask, picture, image, std::nullopt);
}

absl::StatusOr<JobPictures> ReadPictures(std::span<const control::PictureUse> images,
                                         std::span<const control::PictureUse> mask, const control::PictureRules& rules,
                                         int64_t height, int64_t width) {
  JobPictures pictures;
  control::Frames first;
  const control::PictureSize size{.width = static_cast<int>(width), .height = static_cast<int>(height)};
  for (const control::PictureUse& picture : images) {
    ASSIGN_OR_RETURN(const control::Frames stored, ReadStored(picture, "an image"));
    const bool begins = first.bytes.empty() && control::BeginsFromPicture(rules, !mask.empty());
    ASSIGN_OR_RETURN(control::Frames fitted,
                     begins ? control::FitStart(rules.fit, stored, size) : control::FitReference(rules.fit, stored));
    pictures.inputs.pictures.push_back(PictureValues(fitted));
    if (control::PromptHoldsPictures(rules.fit)) {
      ASSIGN_OR_RETURN(control::Frames of_prompt, control::FitPromptPicture(rules.fit, stored));
      pictures.of_prompt.push_back(std::move(of_prompt));
    }
    if (first.bytes.empty()) first = std::move(fitted);
  }
  for (const control::PictureUse& use_of_mask : mask) {
    ASSIGN_OR_RETURN(const control::Frames stored, ReadStored(use_of_mask, "the mask"));
    ASSIGN_OR_RETURN(const control::Frames binary,
                     control::PrepareMask(stored, size.width, size.height, control::FitMode::kStretch));
    pictures.inputs.mask = MaskValues(binary);
    ASSIGN_OR_RETURN(control::Frames feathered, Feathered(binary));
    pictures.kept = KeptPixels{.picture = first, .mask = std::move(feathered)};
  }
  return pictures;
}

absl::StatusOr<std::vector<control::Frames>> ReadPromptPictures(std::span<const control::PictureUse> images,
                                                                const control::PictureRules& rules) {
  std::vector<control::Frames> pictures;
  if (!control::PromptHoldsPictures(rules.fit)) return pictures;
  for (const control::PictureUse& picture : images) {
    ASSIGN_OR_RETURN(const control::Frames stored, ReadStored(picture, "an image"));
    ASSIGN_OR_RETURN(control::Frames fitted, control::FitPromptPicture(rules.fit, stored));
    pictures.push_back(std::move(fitted));
  }
  return pictures;
}

}  // namespace tessera::runtime
