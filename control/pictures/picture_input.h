// PictureRules say which pictures a request to a model may have and what the model does with them. A family states them
// in its description; validation, estimates of cost, the engine and all interfaces read them from there.
#pragma once

#include <array>
#include <cstdint>
#include <tuple>

#include "base/fields/fields.h"

namespace tessera::control {

enum class PictureInput : uint8_t {
  kNone,       // it takes none
  kStart,      // the image begins from a picture with noise; with a mask, a part of the picture is kept
  kFill,       // the part of a picture under a mask is filled in by a model trained for it (FLUX.1 Fill)
  kReference,  // the model looks at pictures while it makes an image (FLUX.1 Kontext, FLUX.2, Qwen-Image-Edit)
};
constexpr auto NamesOf(PictureInput) { return std::array{"none", "start", "fill", "reference"}; }

// How a model that looks at pictures brings each to a size that it reads, and which size its image has by default
// (control/pictures/reference_size.h).
enum class ReferenceFit : uint8_t { kNone, kKontext, kFlux2, kQwenEdit, kQwenEditPlus };
constexpr auto NamesOf(ReferenceFit) { return std::array{"none", "kontext", "flux2", "qwen_edit", "qwen_edit_plus"}; }

// Whether the text encoder also reads the pictures, as tokens of the prompt.
constexpr bool PromptHoldsPictures(ReferenceFit fit) {
  return fit == ReferenceFit::kQwenEdit || fit == ReferenceFit::kQwenEditPlus;
}

// What latents are of a mask's pixels, of which each covers a square.
enum class MaskRule : uint8_t {
  kNone,          // the model takes no mask
  kFirstPixel,    // the value of the square's first pixel
  kMiddlePixels,  // the mean of the four pixels in the square's middle
};
constexpr auto NamesOf(MaskRule) { return std::array{"none", "first_pixel", "middle_pixels"}; }

struct PictureRules {
  PictureInput use = PictureInput::kNone;
  int32_t most = 0;  // pictures of one job, apart from its mask
  // Of kReference. Models of other uses stretch a picture to the size of the image.
  ReferenceFit fit = ReferenceFit::kNone;
  bool required = false;  // it makes no image without a picture
  // If a request has a mask, its first picture is changed only there. A model that looks at pictures then begins from
  // that picture and looks at it, too.
  MaskRule mask = MaskRule::kNone;
  double usual_strength = 1;  // of a request that begins from a picture and names no strength

  bool operator==(const PictureRules&) const = default;
};

constexpr auto FieldsOf(const PictureRules*) {
  using base::Field;
  using R = PictureRules;
  return std::tuple(Field("use", &R::use), Field("most", &R::most, base::Integer{0, 16}), Field("fit", &R::fit),
                    Field("required", &R::required), Field("mask", &R::mask),
                    Field("usual_strength", &R::usual_strength, base::Number{0, 1}));
}

// The rules of FLUX.1 and, the first, of other models that are trained on text and images alone; the last ones are
// those of Qwen-Image-Edit and of Edit-Plus.
inline constexpr PictureRules kStartsFromPicture = {
    .use = PictureInput::kStart, .most = 1, .mask = MaskRule::kFirstPixel, .usual_strength = 0.6};
inline constexpr PictureRules kFillsPicture = {
    .use = PictureInput::kFill, .most = 1, .required = true, .mask = MaskRule::kFirstPixel};
inline constexpr PictureRules kKontextPictures = {
    .use = PictureInput::kReference, .most = 1, .fit = ReferenceFit::kKontext};
inline constexpr PictureRules kQwenEditPictures = {
    .use = PictureInput::kReference, .most = 1, .fit = ReferenceFit::kQwenEdit, .required = true};
inline constexpr PictureRules kQwenEditPlusPictures = {
    .use = PictureInput::kReference, .most = 3, .fit = ReferenceFit::kQwenEditPlus, .required = true};

// The rules of the models of FLUX.1 with that use of pictures.
constexpr PictureRules UsualRules(PictureInput use) {
  switch (use) {
    case PictureInput::kStart:
      return kStartsFromPicture;
    case PictureInput::kFill:
      return kFillsPicture;
    case PictureInput::kReference:
      return kKontextPictures;
    case PictureInput::kNone:
      break;
  }
  return {};
}

// Whether the image of a job with pictures begins from the first of them, and not from noise alone.
constexpr bool BeginsFromPicture(const PictureRules& rules, bool has_mask) {
  return rules.use == PictureInput::kStart || rules.use == PictureInput::kFill ||
         (rules.use == PictureInput::kReference && has_mask);
}

}  // namespace tessera::control
