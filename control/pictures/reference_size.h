// The sizes of pictures that a model looks at, and of the image that it then makes by default, for each ReferenceFit.
// All functions are pure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "absl/status/statusor.h"
#include "control/pictures/picture.h"

namespace tessera::control {

enum class ReferenceFit : uint8_t;  // control/pictures/picture_input.h
struct Frames;                      // control/pictures/picture_frames.h

// A picture is stretched to `scaled`, and `read` is cut out of its middle.
struct ReferenceSize {
  PictureSize scaled, read;
  bool operator==(const ReferenceSize&) const = default;
};

// INVALID_ARGUMENT, in words that follow the picture's name, for a size that the reference pipeline refuses.
absl::Status CheckReference(ReferenceFit fit, const PictureSize& picture);

// Returns how a picture that a model looks at is brought to size. INVALID_ARGUMENT, in words that follow the picture's
// name, if nothing would be left of it. `fit` is not kNone.
absl::StatusOr<ReferenceSize> SizeOfReference(ReferenceFit fit, const PictureSize& picture);

// Returns the picture as the processor of the text encoder gets it, for a model whose prompts hold pictures. The errors
// of SizeOfReference and of Resize.
absl::StatusOr<Frames> FitPromptPicture(ReferenceFit fit, const Frames& picture);

// Returns how many tokens of a prompt stand for a picture of this size, within the published limits of the processor; 0
// for models whose prompts hold none.
int64_t PromptTokensOf(ReferenceFit fit, const PictureSize& picture);

// Returns the picture as the model reads it, with the bytes of the reference pipeline. The errors of SizeOfReference
// and of Resize.
absl::StatusOr<Frames> FitReference(ReferenceFit fit, const Frames& picture);

// Returns the size that an image made after these pictures has by default; none if it is the model's own for the
// proportions of the first one. With `from_first` the image begins from the first picture, which a mask covers in part.
std::optional<PictureSize> SizeOfResult(ReferenceFit fit, std::span<const PictureSize> pictures, bool from_first);

// Returns the picture that an image of this size begins from, for a model that also looks at it.
absl::StatusOr<Frames> FitStart(ReferenceFit fit, const Frames& picture, const PictureSize& image);

}  // namespace tessera::control
