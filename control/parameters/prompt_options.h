// PromptOptions holds the conditioning options of a request other than prompt, negative prompt and guidance scale. Each
// family reads some of them; FamilyDescription::options lists which. Plain values, free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "base/fields/fields.h"

namespace tessera::control {

// Guidance away from a prediction that skips some blocks: adds scale · (conditional − skipped) in the steps i with
// steps · start < i < steps · stop.
struct SkipLayerGuidance {
  std::vector<int32_t> layers;  // empty: off
  double scale = 2.8;
  double start = 0.01, stop = 0.2;

  bool operator==(const SkipLayerGuidance&) const = default;
};

// The size from which an image is claimed to have been cropped, in pixels; 0: the family's default.
struct OriginalSize {
  int32_t height = 0, width = 0;
  int32_t crop_top = 0, crop_left = 0;

  bool operator==(const OriginalSize&) const = default;
};

struct PromptOptions {
  // Prompts of the second and third text encoder; empty: the same as the first.
  std::string prompt_2, prompt_3, negative_prompt_2, negative_prompt_3;  // valid UTF-8 without NUL
  double true_cfg_scale = 1;    // classifier-free guidance of a model that also takes a guidance scale as input
  double guidance_rescale = 0;  // 0 … 1: how far the guided prediction is rescaled to the conditional one's deviation
  // The norm of the guided prediction over the whole image is at most this many times the conditional one's; 0: no
  // limit.
  double cfg_normalization = 0;
  // The part of the way from noise to the image after which steps run without guidance, 0 … 1.
  double cfg_truncation = 1;
  int32_t clip_skip = 0;  // number of further CLIP layers to skip, for the positive prompt
  SkipLayerGuidance skip_layers;
  OriginalSize original_size;

  bool operator==(const PromptOptions&) const = default;
};

inline constexpr base::Text kPrompt = {.most_bytes = 32768};
inline constexpr base::Number kScales = {0, 1000};
inline constexpr base::Number kParts = {0, 1};
inline constexpr base::Integer kPixels = {0, 65536};

constexpr auto FieldsOf(const SkipLayerGuidance*) {
  using base::Field;
  return std::tuple(
      Field("skip_layers", &SkipLayerGuidance::layers, base::List<base::Integer>{.each = {0, 1023}, .distinct = true}),
      Field("skip_layer_scale", &SkipLayerGuidance::scale, kScales),
      Field("skip_layer_start", &SkipLayerGuidance::start, kParts),
      Field("skip_layer_stop", &SkipLayerGuidance::stop, kParts));
}

constexpr auto FieldsOf(const OriginalSize*) {
  using base::Field;
  return std::tuple(
      Field("original_width", &OriginalSize::width, kPixels), Field("original_height", &OriginalSize::height, kPixels),
      Field("crop_top", &OriginalSize::crop_top, kPixels), Field("crop_left", &OriginalSize::crop_left, kPixels));
}

// The bounds cover all models; a model may accept a smaller range.
constexpr auto FieldsOf(const PromptOptions*) {
  using base::Field;
  using P = PromptOptions;
  return std::tuple(
      Field("prompt_2", &P::prompt_2, kPrompt), Field("prompt_3", &P::prompt_3, kPrompt),
      Field("negative_prompt_2", &P::negative_prompt_2, kPrompt),
      Field("negative_prompt_3", &P::negative_prompt_3, kPrompt), Field("true_cfg_scale", &P::true_cfg_scale, kScales),
      Field("guidance_rescale", &P::guidance_rescale, kParts), Field("clip_skip", &P::clip_skip, base::Integer{0, 64}),
      Field("cfg_normalization", &P::cfg_normalization, kScales), Field("cfg_truncation", &P::cfg_truncation, kParts),
      base::Inline(&P::skip_layers), base::Inline(&P::original_size));
}

// Names of the fields above in requests and messages.
namespace prompt_option {
inline constexpr char kPrompt2[] = "prompt_2";
inline constexpr char kPrompt3[] = "prompt_3";
inline constexpr char kTrueCfgScale[] = "true_cfg_scale";
inline constexpr char kGuidanceRescale[] = "guidance_rescale";
inline constexpr char kCfgNormalization[] = "cfg_normalization";
inline constexpr char kCfgTruncation[] = "cfg_truncation";
inline constexpr char kClipSkip[] = "clip_skip";
inline constexpr char kSkipLayers[] = "skip_layers";
inline constexpr char kOriginalSize[] = "original_size";
}  // namespace prompt_option

}  // namespace tessera::control
