// The front end's end of one worker's control channel: the command log of one rank.
//
// Commands get sequence numbers in the order in which they are sent; replies are matched to them. Every wait ends at
// its deadline and when the worker is gone; who wants to stop one earlier kills the worker. Used by one thread.
//
// Errors: what the worker reports, with its code; UNAVAILABLE when the worker is gone, says things that the protocol
// does not know, or does not answer in time, after which it is of no more use.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "control/commands.h"
#include "control/image.h"

namespace tessera::control {

struct DecodedPicture {
  Image image;
  double seconds = 0;     // spent on decoding
  int32_t completed = 0;  // steps that were made of it
};

// Of all controllers of a worker so far. Ranks for which it is equal have carried out the same log.
struct WorkerProgress {
  uint64_t commands = 0;
  uint64_t failures = 0;

  bool operator==(const WorkerProgress&) const = default;
};

class WorkerClient {
 public:
  struct Options {
    int socket = -1;         // connected; owned by the client from here on
    absl::Duration timeout;  // for the answer to any one command
    // Says how the worker ended, when its stream has: "the worker was killed by signal 9 (Killed)".
    std::function<std::string()> ending;
    bool sends_results = true;  // rank 0 of its group: pixels and tensors come from there
  };

  static constexpr int kMaxStepsInFlight = 2;  // commands

  explicit WorkerClient(Options options);
  ~WorkerClient();

  absl::StatusOr<ModelDescription> Describe(const std::string& model);
  absl::StatusOr<DeviceIdentity> Identify(const std::string& device);
  absl::StatusOr<Loaded> Load(const LoadParameters& parameters);
  // StartJob and EndJob may be sent ahead of the wait for their answers, as what follows may; `Send` returns the
  // sequence number that its `Wait` takes.
  absl::StatusOr<uint64_t> SendStartJob(uint64_t job, const JobParameters& parameters);
  absl::StatusOr<JobStarted> WaitForStart(uint64_t sequence);
  absl::StatusOr<JobStarted> StartJob(uint64_t job, const JobParameters& parameters);

  absl::StatusOr<int32_t> EncodePrompts(absl::Span<const JobParameters> jobs);

  // Sends one command to make so many steps of these jobs, 1 to kMaxStepsTogether, and returns its sequence number;
  // FAILED_PRECONDITION with kMaxStepsInFlight such commands unanswered already. All of them are answered at once.
  absl::StatusOr<uint64_t> SendSteps(absl::Span<const uint64_t> jobs, int32_t count);
  absl::StatusOr<std::vector<Stepped>> WaitForSteps(uint64_t sequence);

  // Sends a command to decode the job as it is after the commands before, and returns its sequence number. `started`
  // tells the size that is expected. The picture is empty where pixels come from another rank, and so are values.
  absl::StatusOr<uint64_t> SendDecode(uint64_t job);
  absl::StatusOr<DecodedPicture> WaitForDecode(uint64_t sequence, const JobStarted& started);
  // The first of these commands that is answered in full, by their order here if there are several. The first of all
  // when the worker is gone or gives no answer in time, of which the wait for it tells.
  uint64_t WaitForAny(absl::Span<const uint64_t> sequences);
  absl::StatusOr<LatentValues> Latents(uint64_t job);
  absl::StatusOr<LatentValues> Predict(uint64_t job, const LatentValues& latents,
                                       absl::Span<const uint64_t> beside = {});
  absl::StatusOr<uint64_t> SendEndJob(uint64_t job);
  absl::Status WaitForEnd(uint64_t sequence);
  absl::Status EndJob(uint64_t job);

  absl::StatusOr<TrainingStarted> StartTraining(const TrainingStart& start);
  absl::StatusOr<SamplesPrepared> PrepareSamples(int64_t most);
  absl::StatusOr<Trained> Train();
  absl::StatusOr<TrainingSaved> SaveTraining(bool exports);
  absl::StatusOr<TrainingSaved> ExportTraining(const std::string& path);
  absl::StatusOr<TrainingEvaluated> EvaluateTraining();

  // How far the worker has got with all controllers so far.
  absl::StatusOr<WorkerProgress> Resume();
  absl::Status Shutdown();

 private:
  class Connection;
  std::unique_ptr<Connection> connection_;
};

}  // namespace tessera::control
