// Defines the commands that start, step, decode and end the jobs of a loaded model. Plain values, free of LibTorch and
// protobuf.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "base/fields/fields.h"
#include "control/parameters/job_parameters.h"
#include "control/protocol/command_number.h"
#include "control/protocol/job_limits.h"
#include "control/protocol/job_replies.h"

namespace tessera::control {

// The job number of the server's own probes. The numbers of other jobs count up from 1.
inline constexpr uint64_t kProbeJob = ~uint64_t{0};

// Encodes the prompts of a job and draws its initial noise.
struct StartJob {
  uint64_t job = 0;  // new
  JobParameters parameters;

  using Reply = JobStarted;
};
constexpr auto FieldsOf(const StartJob*) {
  return std::tuple(base::Field("job", &StartJob::job, base::Integer{.low = 1}), base::Inline(&StartJob::parameters));
}

// Encodes the prompts of jobs that will start soon, for text encoders that are read from their files for each use.
// Starts no job.
struct EncodePrompts {
  std::vector<JobParameters> jobs;

  using Reply = PromptsEncoded;
};
constexpr auto FieldsOf(const EncodePrompts*) {
  return std::tuple(base::Field("jobs", &EncodePrompts::jobs, base::List<base::Nested>{.most = kMaxPromptsAhead}));
}

// Executes consecutive timesteps of one batch of jobs.
struct MakeSteps {
  std::vector<uint64_t> jobs;  // at least one
  int32_t count = 1;

  using Reply = StepsMade;
};
constexpr auto FieldsOf(const MakeSteps*) {
  return std::tuple(
      base::Field("jobs", &MakeSteps::jobs, base::List<base::Integer>{.most = kMaxBatch, .distinct = true}),
      base::Field("count", &MakeSteps::count, base::Integer{1, kMaxStepsTogether}));
}
absl::Status CheckRules(const MakeSteps& steps);

// Decodes the job's current latents; before the last step, the result is a preview. Rank 0 sends any number of Rows
// before the reply.
struct DecodeJob {
  uint64_t job = 0;

  using Reply = Decoded;
};
constexpr auto FieldsOf(const DecodeJob*) { return std::tuple(base::Field("job", &DecodeJob::job)); }

// Frees a job that has finished, was cancelled or was given up. An unknown job is not an error.
struct EndJob {
  uint64_t job = 0;

  using Reply = Ended;
};
constexpr auto FieldsOf(const EndJob*) { return std::tuple(base::Field("job", &EndJob::job)); }

// Returns the job's current latents. Ranks other than rank 0 reply without values.
struct ReadLatents {
  uint64_t job = 0;

  using Reply = LatentValues;
};
constexpr auto FieldsOf(const ReadLatents*) { return std::tuple(base::Field("job", &ReadLatents::job)); }

// Predicts the model's output at the job's next step, guidance included, from these latents instead of the job's own,
// in one batch with the jobs `others` at their own latents. No job changes. Ranks other than rank 0 reply without
// values.
struct PredictFrom {
  uint64_t job = 0;
  LatentValues latents;
  std::vector<uint64_t> others;

  using Reply = LatentValues;
};
constexpr auto FieldsOf(const PredictFrom*) {
  return std::tuple(
      base::Field("job", &PredictFrom::job), base::Inline(&PredictFrom::latents),
      base::Field("others", &PredictFrom::others, base::List<base::Integer>{.most = kMaxBatch - 1, .distinct = true}));
}
absl::Status CheckRules(const PredictFrom& command);

using JobCommands = std::tuple<StartJob, EncodePrompts, MakeSteps, DecodeJob, EndJob, ReadLatents, PredictFrom>;
template <CommandOf<JobCommands> Command>
inline constexpr uint32_t kCommandNumber<Command> = kMostCommandsOfList + kCommandIndex<Command, JobCommands>;

}  // namespace tessera::control
