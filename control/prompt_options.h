// What a request may say about its conditioning beyond prompt, negative prompt and guidance scale. Every family reads
// some of it; FamilyDescription::options names which. Plain values, LibTorch-free.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace tessera::control {

// Guidance away from a prediction made without some blocks: adds scale · (conditional − skipped) in the steps i with
// steps · start < i < steps · stop.
struct SkipLayerGuidance {
  std::vector<int32_t> layers;  // empty: off
  double scale = 2.8;
  double start = 0.01, stop = 0.2;

  bool operator==(const SkipLayerGuidance&) const = default;
};

// The size an image is said to have been cut from, in pixels; 0: the family's default.
struct OriginalSize {
  int32_t height = 0, width = 0;
  int32_t crop_top = 0, crop_left = 0;

  bool operator==(const OriginalSize&) const = default;
};

struct PromptOptions {
  // For the second and third text encoder; empty: the same as the first.
  std::string prompt_2, prompt_3, negative_prompt_2, negative_prompt_3;  // valid UTF-8 without NUL
  double true_cfg_scale = 1;    // classifier-free guidance of a model that is also told a guidance scale
  double guidance_rescale = 0;  // 0 … 1: how much of the guided prediction gets the conditional one's deviation
  int32_t clip_skip = 0;        // further layers of CLIP left out, for the positive prompt
  SkipLayerGuidance skip_layers;
  OriginalSize original_size;

  bool operator==(const PromptOptions&) const = default;
};

// What is valid for some model, both ends included: of a number, of each number of a list, of the bytes of a text. A
// model's own bounds may be narrower.
struct Bounds {
  double low, high;
};
inline constexpr Bounds kUnbounded = {0, std::numeric_limits<double>::infinity()};
inline constexpr Bounds kPromptBytes = {0, 32768};
inline constexpr Bounds kNameBytes = {0, 256};
inline constexpr Bounds kScales = {0, 1000};
inline constexpr Bounds kParts = {0, 1};

// Calls visit(id, bounds, fields...) for every option, with the field of each of `options`, which may be const. So one
// walk reads, writes or compares.
template <class Visit, class... Options>
void VisitOptions(const Visit& visit, Options&... options) {
  visit("prompt_2", kPromptBytes, options.prompt_2...);
  visit("prompt_3", kPromptBytes, options.prompt_3...);
  visit("negative_prompt_2", kPromptBytes, options.negative_prompt_2...);
  visit("negative_prompt_3", kPromptBytes, options.negative_prompt_3...);
  visit("true_cfg_scale", kScales, options.true_cfg_scale...);
  visit("guidance_rescale", kParts, options.guidance_rescale...);
  visit("clip_skip", Bounds{0, 64}, options.clip_skip...);
  visit("skip_layers", Bounds{0, 1023}, options.skip_layers.layers...);
  visit("skip_layer_scale", kScales, options.skip_layers.scale...);
  visit("skip_layer_start", kParts, options.skip_layers.start...);
  visit("skip_layer_stop", kParts, options.skip_layers.stop...);
  visit("original_width", Bounds{0, 65536}, options.original_size.width...);
  visit("original_height", Bounds{0, 65536}, options.original_size.height...);
  visit("crop_top", Bounds{0, 65536}, options.original_size.crop_top...);
  visit("crop_left", Bounds{0, 65536}, options.original_size.crop_left...);
}

// Names of the fields above as requests and messages spell them.
namespace prompt_option {
inline constexpr char kPrompt2[] = "prompt_2";
inline constexpr char kPrompt3[] = "prompt_3";
inline constexpr char kTrueCfgScale[] = "true_cfg_scale";
inline constexpr char kGuidanceRescale[] = "guidance_rescale";
inline constexpr char kClipSkip[] = "clip_skip";
inline constexpr char kSkipLayers[] = "skip_layers";
inline constexpr char kOriginalSize[] = "original_size";
}  // namespace prompt_option

}  // namespace tessera::control
