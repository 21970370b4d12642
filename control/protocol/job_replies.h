// Defines what a worker replies to the commands about jobs (control/protocol/job_commands.h). Plain values, free of
// LibTorch and protobuf.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"
#include "control/host/device_memory.h"

namespace tessera::control {

struct Frames;

// Limits of one job and its image.
inline constexpr int32_t kMaxRunSteps = 1 << 20;
inline constexpr int32_t kMaxFrameSide = 1 << 16;  // pixels
inline constexpr int32_t kMaxFrames = 64;
inline constexpr int32_t kMaxChannels = 4;
inline constexpr uint64_t kMaxFramesBytes = uint64_t{1} << 34;  // of all frames

struct JobStarted {
  int32_t height = 0;  // of the resulting image
  int32_t width = 0;
  int32_t frames = 1;            // Frames::count of the resulting image
  int32_t channels = 3;          // Frames::channels of the resulting image
  int32_t generated_height = 0;  // of the image that is denoised; differs under resolution binning
  int32_t generated_width = 0;
  int32_t first_step = 0;  // the first step that is run, counted through the sampler's schedule
  int32_t steps = 0;       // number of steps that are run
  std::string sampler;
  int32_t prompt_tokens = 0;
  int32_t max_sequence_length = 0;
  double seconds = 0;                 // spent on the text encoders
  bool cached = false;                // every prompt was in the cache
  std::vector<std::string> warnings;  // for example that a prompt was cut at the maximum length
};
constexpr auto FieldsOf(const JobStarted*) {
  using base::Field, base::Integer;
  using J = JobStarted;
  return std::tuple(
      Field("height", &J::height, Integer{1, kMaxFrameSide}), Field("width", &J::width, Integer{1, kMaxFrameSide}),
      Field("frames", &J::frames, Integer{1, kMaxFrames}), Field("channels", &J::channels, Integer{1, kMaxChannels}),
      Field("generated_height", &J::generated_height, Integer{0, kMaxFrameSide}),
      Field("generated_width", &J::generated_width, Integer{0, kMaxFrameSide}),
      Field("first_step", &J::first_step, Integer{0, kMaxRunSteps}),
      Field("steps", &J::steps, Integer{1, kMaxRunSteps}), Field("sampler", &J::sampler),
      Field("prompt_tokens", &J::prompt_tokens), Field("max_sequence_length", &J::max_sequence_length),
      Field("seconds", &J::seconds), Field("cached", &J::cached), Field("warnings", &J::warnings));
}
// The resulting image has at most kMaxFramesBytes.
absl::Status CheckRules(const JobStarted& started);

struct PromptsEncoded {
  int32_t prompts = 0;  // prompts that are encoded when their jobs start
};
constexpr auto FieldsOf(const PromptsEncoded*) { return std::tuple(base::Field("prompts", &PromptsEncoded::prompts)); }

struct Stepped {
  int32_t completed = 0;  // steps that the first job of the batch has run
  double seconds = 0;
  // Digest of the batch's latents, which are the same on every rank; 0 if this rank does not know it or has no peers.
  uint64_t digest = 0;
  std::optional<DeviceMemory> device_memory;  // after the step; absent as in Loaded
};
constexpr auto FieldsOf(const Stepped*) {
  using base::Field;
  using S = Stepped;
  return std::tuple(Field("completed", &S::completed), Field("seconds", &S::seconds), Field("digest", &S::digest),
                    Field("device_memory", &S::device_memory));
}

struct StepsMade {
  std::vector<Stepped> steps;  // in order, at least one
};
constexpr auto FieldsOf(const StepsMade*) { return std::tuple(base::Field("steps", &StepsMade::steps)); }
absl::Status CheckRules(const StepsMade& made);

// A part of the reply to DecodeJob: some rows of the image.
struct Rows {
  int32_t first = 0;  // counted through all frames
  std::string bytes;  // whole rows
};
constexpr auto FieldsOf(const Rows*) {
  return std::tuple(base::Field("first", &Rows::first), base::Field("bytes", &Rows::bytes, base::Bytes()));
}

struct Decoded {
  int32_t height = 0;
  int32_t width = 0;
  int32_t frames = 1;
  int32_t channels = 3;
  double seconds = 0;
  int32_t completed = 0;  // steps that the job has run at the time of decoding
};
constexpr auto FieldsOf(const Decoded*) {
  using base::Field;
  using D = Decoded;
  return std::tuple(Field("height", &D::height), Field("width", &D::width), Field("frames", &D::frames),
                    Field("channels", &D::channels), Field("seconds", &D::seconds), Field("completed", &D::completed));
}

// Returns the shape that the reply states, without bytes.
Frames ShapeOf(const JobStarted& started);
Frames ShapeOf(const Decoded& decoded);

struct Ended {};
constexpr auto FieldsOf(const Ended*) { return std::tuple(); }

// Latents or a prediction of one image, [channels, height, width], row-major.
struct LatentValues {
  std::vector<int64_t> shape;
  std::vector<double> values;
};
constexpr auto FieldsOf(const LatentValues*) {
  using base::List;
  return std::tuple(base::Field("shape", &LatentValues::shape, List<base::Integer>{.each = {.low = 1}, .most = 8}),
                    base::Field("values", &LatentValues::values, List<base::Number>{.most = 1 << 24}));
}
// The number of values is the product of the shape, or there are no values.
absl::Status CheckRules(const LatentValues& latents);

}  // namespace tessera::control
