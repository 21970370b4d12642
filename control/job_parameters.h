// What a worker is told of a job, and the one walk over it. Plain values without protobuf, so that code with LibTorch
// can use them.
//
// The walk serves all that treats parameters alike: the message that travels to workers and lies in the job store
// (control/job_parameters_wire.h), the check of what came from outside, requests (server/api/request_fields.h).
// Groups that repeat are a vector of structs here and a repeated message there (adapters: control/adapter_use.h). Bytes
// that lie in files, such as an adapter or a picture to start from, are named by their digest, so that parameters stay
// small enough to be stored and sent with every job.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/enum_names.h"
#include "control/adapter_use.h"
#include "control/prompt_options.h"

namespace tessera::control {

// Where a job's random numbers come from (runtime/denoising/noise_source.h).
enum class NoiseKind : uint8_t { kTessera, kTorchCpu };
constexpr auto NamesOf(NoiseKind) { return std::array{"tessera", "torch-cpu"}; }

struct JobParameters {
  std::string prompt;                          // valid UTF-8 without NUL
  std::optional<std::string> negative_prompt;  // absent and empty differ where guidance is optional
  PromptOptions options;
  int32_t height = 0;  // pixels as the user gave them; resolution binning happens in the worker
  int32_t width = 0;
  int32_t steps = 0;
  double guidance_scale = 0;
  uint64_t seed = 0;
  std::string sampler;  // one of ModelDescription::samplers; empty: the model's own
  NoiseKind noise = NoiseKind::kTessera;
  bool clean_caption = false;
  bool resolution_binning = false;
  int32_t max_sequence_length = 0;   // 0: the model's default
  std::vector<AdapterUse> adapters;  // in the order in which they are added
};

// Calls visit(id, bounds, fields...) for every parameter, with the field of each of `jobs`, which may be const, and for
// those of the options.
template <class Visit, class... Jobs>
void VisitParameters(const Visit& visit, Jobs&... jobs) {
  visit("prompt", kPromptBytes, jobs.prompt...);
  visit("negative_prompt", kPromptBytes, jobs.negative_prompt...);
  visit("height", Bounds{1, 65536}, jobs.height...);
  visit("width", Bounds{1, 65536}, jobs.width...);
  visit("steps", Bounds{1, 1 << 20}, jobs.steps...);
  visit("guidance_scale", kScales, jobs.guidance_scale...);
  visit("seed", kUnbounded, jobs.seed...);
  visit("sampler", kNameBytes, jobs.sampler...);
  visit("noise", kUnbounded, jobs.noise...);
  visit("clean_caption", kUnbounded, jobs.clean_caption...);
  visit("resolution_binning", kUnbounded, jobs.resolution_binning...);
  visit("max_sequence_length", Bounds{0, 65536}, jobs.max_sequence_length...);
  visit("loras", kAdapterScales, jobs.adapters...);
  VisitOptions(visit, jobs.options...);
}

// INVALID_ARGUMENT, with the id of the field, for what no validator lets through: a value out of its bounds, a text
// with NUL or that is not UTF-8, options that contradict each other.
absl::Status CheckBounds(const JobParameters& job);

}  // namespace tessera::control
