// What can be asked of an image on the command line, as typed, and the request that it means.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "server/api/generation_request.h"

namespace tessera {

// Empty where it was not typed.
struct GenerationOptions {
  std::string prompt, prompt_2, prompt_3;
  std::optional<std::string> negative_prompt;
  std::string negative_prompt_2, negative_prompt_3;
  std::string size, width, height, steps, guidance, seed, count, max_sequence_length;
  std::string sampler, noise;
  std::optional<bool> clean_caption, resolution_binning;
  std::string true_cfg, guidance_rescale, clip_skip;
  std::string skip_layers, skip_layer_scale, skip_layer_start, skip_layer_stop;
  std::string original_size, crop_top_left;
};

void AddGenerationOptions(CLI::App& app, GenerationOptions& options);

// With a random seed where none was typed. INVALID_ARGUMENT for what cannot be understood; whether it is legal is the
// validator's business.
absl::StatusOr<GenerationRequest> RequestOf(const GenerationOptions& options);

}  // namespace tessera
