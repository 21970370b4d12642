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
#include "runtime/commands.h"

namespace tessera {

inline constexpr size_t kMaxPromptBytes = 32768;
inline constexpr int64_t kMaxImageCount = 1000;
inline constexpr double kMaxGuidanceScale = 1000;
inline constexpr int64_t kMaxSequenceLength = 4096;
inline constexpr int64_t kMaxThreads = 1024;

// What is absent is the model's default.
struct GenerationRequest {
  std::string prompt;
  std::string negative_prompt;
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
};

// The parameters of the first image.
absl::StatusOr<JobParameters> Validate(const GenerationRequest& request, const ModelDescription& model);

// Where and in which precision a model is to run.
struct PlacementRequest {
  std::string dtype = "fp32";
  std::string device = "cpu";
  int64_t threads = 0;  // 0: all of the machine's
};

absl::StatusOr<LoadParameters> Validate(const PlacementRequest& request, const std::string& model);

// OK if `value` is among `legal`; else an error that lists them and names the one that is spelt most like it.
absl::Status CheckName(absl::string_view field, absl::string_view value, absl::Span<const std::string> legal);

}  // namespace tessera
