// JobParameters holds what a worker needs to execute a job, with one description of its fields. Plain values without
// protobuf, so that code with LibTorch can use them.
//
// One field description drives everything that treats parameters uniformly: the message that is sent to workers and
// stored in the job store (control/parameters/job_parameters_wire.h), the validation of external input, and requests
// (server/api/request_fields.h). A repeated group is a vector of structs here and a repeated message there (adapters:
// control/parameters/adapter_use.h). File contents, such as an adapter or a picture to start from, are named by their
// digest, so that parameters stay small enough to be stored and sent with every job.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/enum_names.h"
#include "base/fields/fields.h"
#include "control/parameters/adapter_use.h"
#include "control/parameters/picture_use.h"
#include "control/parameters/prompt_options.h"
#include "control/pictures/strength.h"

namespace tessera::control {

inline constexpr int32_t kMaxSteps = 1 << 20;

// Source of a job's random numbers (runtime/denoising/noise_source.h).
enum class NoiseKind : uint8_t { kTessera, kTorchCpu };
constexpr auto NamesOf(NoiseKind) { return std::array{"tessera", "torch-cpu"}; }

struct JobParameters {
  std::string prompt;                          // valid UTF-8 without NUL
  std::optional<std::string> negative_prompt;  // absent and empty differ if guidance is optional
  PromptOptions options;
  int32_t height = 0;  // pixels as requested; resolution binning happens in the worker
  int32_t width = 0;
  int32_t steps = 0;  // of the sampler's schedule; JobStarted has the number that is run
  double guidance_scale = 0;
  uint64_t seed = 0;
  std::string sampler;  // one of ModelDescription::samplers; empty: the model's default
  NoiseKind noise = NoiseKind::kTessera;
  bool clean_caption = false;
  bool resolution_binning = false;
  int32_t max_sequence_length = 0;   // 0: the model's default
  std::vector<AdapterUse> adapters;  // in the order in which they are added
  std::vector<PictureUse> images;    // pictures that the model begins from or looks at
  std::vector<PictureUse> mask;      // at most one: white where the image is changed
  double strength = 1;               // of the change to the picture: the part of the steps that is run
};

constexpr auto FieldsOf(const JobParameters*) {
  using base::Field, base::Integer;
  using J = JobParameters;
  return std::tuple(Field("prompt", &J::prompt, kPrompt), Field("negative_prompt", &J::negative_prompt, kPrompt),
                    Field("height", &J::height, Integer{1, 65536}), Field("width", &J::width, Integer{1, 65536}),
                    Field("steps", &J::steps, Integer{1, kMaxSteps}),
                    Field("guidance_scale", &J::guidance_scale, kScales), Field("seed", &J::seed),
                    Field("sampler", &J::sampler, base::Text{.most_bytes = 256}), Field("noise", &J::noise),
                    Field("clean_caption", &J::clean_caption), Field("resolution_binning", &J::resolution_binning),
                    Field("max_sequence_length", &J::max_sequence_length, Integer{0, 65536}),
                    Field("loras", &J::adapters, base::List<base::Nested>{.most = kMaxAdapters}),
                    Field("images", &J::images, base::List<base::Nested>{.most = kMaxPictures}),
                    Field("mask", &J::mask, base::List<base::Nested>{.most = 1}),
                    Field("strength", &J::strength, kStrengths), base::Inline(&J::options));
}

// Returns the number of steps that the job is expected to run, for estimates before a worker has started it. Afterwards
// JobStarted has the number.
inline int32_t ExpectedSteps(const JobParameters& job) {
  return job.steps - FirstStepOfStrength(job.steps, job.strength);
}

// Checks that skip-layer guidance stops after its start.
absl::Status CheckRules(const JobParameters& job);

struct PictureRules;  // control/pictures/picture_input.h
// INVALID_ARGUMENT about `images`, `mask` or `strength` if the job has other pictures than the model takes. Pictures of
// no width are placeholders, whose sizes are not checked.
absl::Status CheckPictures(const JobParameters& job, const PictureRules& model);

}  // namespace tessera::control
