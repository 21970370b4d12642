// A request for images as any edge (command line, HTTP, gRPC) understood it, and the one validator for all of them.
//
// Every error names the field, its value, what is legal, and the nearest legal choice where there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "control/commands.h"

namespace tessera {

inline constexpr size_t kMaxPromptBytes = 32768;
inline constexpr int64_t kMaxImageCount = 1000;
inline constexpr double kMaxGuidanceScale = 1000;
inline constexpr int64_t kMaxClipSkip = 64;
inline constexpr int64_t kMaxOriginalSize = 65536;
inline constexpr int64_t kMaxPromptCacheMib = 1048576;
inline constexpr int64_t kMaxThreads = 1024;

// What is absent is the model's default.
struct GenerationRequest {
  std::string prompt;
  std::optional<std::string> negative_prompt;
  // For the second and third text encoder; empty: the same as the first.
  std::string prompt_2, prompt_3, negative_prompt_2, negative_prompt_3;
  std::optional<int64_t> width;
  std::optional<int64_t> height;
  std::optional<int64_t> steps;
  std::optional<double> guidance_scale;
  uint64_t seed = 0;  // of the first image; the others count up from it
  int64_t count = 1;
  std::string sampler;
  std::string noise = "tessera";
  std::optional<bool> clean_caption;
  std::optional<bool> resolution_binning;
  std::optional<int64_t> max_sequence_length;
  // A model refuses those of the following that it does not read.
  std::optional<double> true_cfg_scale;
  std::optional<double> guidance_rescale;
  std::optional<int64_t> clip_skip;
  std::vector<int64_t> skip_layers;
  std::optional<double> skip_layer_scale, skip_layer_start, skip_layer_stop;
  std::optional<int64_t> original_width, original_height, crop_top, crop_left;
};

// The parameters of the first image. What of them has no effect on it: server/api/unused_parameters.h.
absl::StatusOr<JobParameters> Validate(const GenerationRequest& request, const ModelDescription& model);

// A sentence for the user where the image is far larger than those that the model makes well.
std::vector<std::string> SizeWarnings(const JobParameters& job, const ModelDescription& model);

// Where and in which precision a model is to run.
struct PlacementRequest {
  std::string dtype = "fp32";
  std::string device = "cpu";
  int64_t threads = 0;  // 0: all of the machine's
  std::string text_encoders = "rank0";
  std::string autoencoder = "rank0";
  int64_t prompt_cache_mib = 256;  // 0: prompts are encoded every time
  bool stream_blocks = false;
};

absl::StatusOr<LoadParameters> Validate(const PlacementRequest& request, const std::string& model);

// The name of a placement in requests.
std::string PlacementName(ComponentPlacement placement);

// INVALID_ARGUMENT about one field; the message is the field's name with `rest` behind it.
absl::Status FieldError(absl::string_view field, absl::string_view rest);

// The name of the field that an error of this file is about; empty: it is about none. The message begins with it.
std::string ErrorField(const absl::Status& status);

// A value as an error message shows it: short, in quotes and readable whatever bytes it has.
std::string QuotedValue(absl::string_view value);

// OK if `value` is among `legal`; else an error that lists them and names the one that is spelt most like it.
absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> legal);

}  // namespace tessera
