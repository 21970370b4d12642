// PictureInput says what a model does with the pictures of a request.
#pragma once

#include <array>
#include <cstdint>

namespace tessera::control {

enum class PictureInput : uint8_t {
  kNone,       // it takes none
  kStart,      // the image begins from a picture with noise; with a mask, a part of the picture is kept
  kFill,       // the part of a picture under a mask is filled in by a model trained for it (FLUX.1 Fill)
  kReference,  // the model looks at pictures while it makes an image (FLUX.1 Kontext)
};
constexpr auto NamesOf(PictureInput) { return std::array{"none", "start", "fill", "reference"}; }

// The most pictures of one job, apart from its mask.
constexpr int MostPictures(PictureInput model) { return model == PictureInput::kNone ? 0 : 1; }

}  // namespace tessera::control
