// What a request may say about its conditioning beyond prompt, negative prompt and guidance scale. Every family reads
// some of it; FamilyDescription::options names which. Plain values, LibTorch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

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

}  // namespace tessera
