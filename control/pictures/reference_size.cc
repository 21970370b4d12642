#include "control/pictures/reference_size.h"

#include "base/macros/status_macros.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/flux2_size.h"
#include "control/pictures/kontext_size.h"
#include "control/pictures/picture_input.h"
#include "control/pictures/vision_processor.h"

namespace tessera::control {

namespace {

// The areas of pictures for Qwen-Image-Edit's autoencoder and, in Edit-Plus, for its text encoder.
constexpr int64_t kQwenArea = 1024 * 1024, kQwenPromptArea = 384 * 384;

// The published limits of the text encoder's processor.
constexpr ProcessorLimits kQwenLimits{.max_pixels = 12845056};

absl::StatusOr<PictureSize> PromptPictureSize(ReferenceFit fit, const PictureSize& picture) {
  return SizeOfArea(picture, fit == ReferenceFit::kQwenEditPlus ? kQwenPromptArea : kQwenArea);
}

// The picture must have a size for the autoencoder and one that the text encoder reads.
absl::Status CheckQwenReference(ReferenceFit fit, const PictureSize& picture) {
  RETURN_IF_ERROR(SizeOfArea(picture, kQwenArea).status());
  ASSIGN_OR_RETURN(const PictureSize size, PromptPictureSize(fit, picture));
  return ProcessorSize(size, kQwenLimits).status();
}

}  // namespace

absl::Status CheckReference(ReferenceFit fit, const PictureSize& picture) {
  if (PromptHoldsPictures(fit)) return CheckQwenReference(fit, picture);
  return fit == ReferenceFit::kFlux2 ? CheckFlux2Reference(picture) : SizeOfReference(fit, picture).status();
}

absl::StatusOr<ReferenceSize> SizeOfReference(ReferenceFit fit, const PictureSize& picture) {
  switch (fit) {
    case ReferenceFit::kKontext: {
      ASSIGN_OR_RETURN(const PictureSize size, KontextPictureSize(picture, /*auto_resize=*/true));
      return ReferenceSize{.scaled = size, .read = size};
    }
    case ReferenceFit::kFlux2:
      return Flux2ReferenceSize(picture);
    case ReferenceFit::kQwenEdit:
    case ReferenceFit::kQwenEditPlus: {
      ASSIGN_OR_RETURN(const PictureSize size, SizeOfArea(picture, kQwenArea));
      return ReferenceSize{.scaled = size, .read = size};
    }
    case ReferenceFit::kNone:
      break;
  }
  return absl::InternalError("a model that looks at no pictures");
}

absl::StatusOr<Frames> FitPromptPicture(ReferenceFit fit, const Frames& picture) {
  ASSIGN_OR_RETURN(const PictureSize size, PromptPictureSize(fit, {.width = picture.width, .height = picture.height}));
  return Resize(picture, size.width, size.height);
}

int64_t PromptTokensOf(ReferenceFit fit, const PictureSize& picture) {
  if (!PromptHoldsPictures(fit)) return 0;
  const absl::StatusOr<PictureSize> fitted = PromptPictureSize(fit, picture);
  if (!fitted.ok()) return 0;
  const absl::StatusOr<PictureSize> read = ProcessorSize(*fitted, kQwenLimits);
  if (!read.ok()) return 0;
  return int64_t{read->width / kQwenLimits.unit} * (read->height / kQwenLimits.unit);
}

absl::StatusOr<Frames> FitReference(ReferenceFit fit, const Frames& picture) {
  ASSIGN_OR_RETURN(const ReferenceSize size, SizeOfReference(fit, {.width = picture.width, .height = picture.height}));
  ASSIGN_OR_RETURN(Frames scaled, Resize(picture, size.scaled.width, size.scaled.height));
  if (size.read == size.scaled) return scaled;
  const int left = (size.scaled.width - size.read.width) / 2, top = (size.scaled.height - size.read.height) / 2;
  return CutRegion(scaled,
                   {.left = left, .top = top, .right = left + size.read.width, .bottom = top + size.read.height});
}

std::optional<PictureSize> SizeOfResult(ReferenceFit fit, std::span<const PictureSize> pictures, bool from_first) {
  if (pictures.empty()) return std::nullopt;
  if (PromptHoldsPictures(fit)) {
    const absl::StatusOr<PictureSize> size =
        SizeOfArea(fit == ReferenceFit::kQwenEdit ? pictures.front() : pictures.back(), kQwenArea);
    if (!size.ok()) return std::nullopt;
    return *size;
  }
  if (fit != ReferenceFit::kFlux2) return std::nullopt;
  if (from_first) return Flux2StartSize(pictures.front());
  const absl::StatusOr<ReferenceSize> size = Flux2ReferenceSize(pictures.front());
  if (!size.ok()) return std::nullopt;
  return size->read;
}

absl::StatusOr<Frames> FitStart(ReferenceFit fit, const Frames& picture, const PictureSize& image) {
  if (fit != ReferenceFit::kFlux2) return Resize(picture, image.width, image.height);
  const PictureSize scaled = Flux2ScaledSize({.width = picture.width, .height = picture.height});
  ASSIGN_OR_RETURN(const Frames smaller, Resize(picture, scaled.width, scaled.height));
  return Resize(smaller, image.width, image.height);
}

}  // namespace tessera::control
