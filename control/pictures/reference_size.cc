#include "control/pictures/reference_size.h"

#include "base/macros/status_macros.h"
#include "control/parameters/picture_input.h"
#include "control/pictures/fit_picture.h"
#include "control/pictures/flux2_size.h"
#include "control/pictures/kontext_size.h"

namespace tessera::control {

absl::Status CheckReference(ReferenceFit fit, const PictureSize& picture) {
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
    case ReferenceFit::kNone:
      break;
  }
  return absl::InternalError("a model that looks at no pictures");
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
  if (fit != ReferenceFit::kFlux2 || pictures.empty()) return std::nullopt;
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
