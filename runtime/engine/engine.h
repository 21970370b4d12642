// Engine answers the command log of a worker: it holds one rank's part of a model, the jobs that run on it, and the
// training run on it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "control/protocol/command_handler.h"
#include "runtime/engine/guard.h"
#include "runtime/engine/model_loader.h"
#include "runtime/engine/served_jobs.h"
#include "runtime/engine/training_run.h"
#include "runtime/group/worker_rank.h"

namespace tessera::runtime {

// Used by one thread. Runs commands with a Guard. The ranks agree before a batch on whether each has the memory it
// needs.
class Engine final : public control::CommandHandler {
 public:
  using DeviceOpener = ModelLoader::DeviceOpener;

  // The place is as MakeEngine says.
  explicit Engine(const WorkerRank& place = {});
  // `open_device` in place of OpenDevice, for devices that no user can name.
  Engine(const WorkerRank& place, DeviceOpener open_device);

  absl::StatusOr<control::ModelDescription> Describe(const std::string& model,
                                                     const control::ComponentFiles& files) override;
  absl::StatusOr<control::ModelDescription> Describe(const std::string& model);  // without components elsewhere
  absl::StatusOr<control::DeviceIdentity> Identify(const std::string& device) override;
  absl::StatusOr<control::Loaded> Load(const control::LoadParameters& parameters) override;
  absl::StatusOr<control::ModelDigest> Digest() override;
  absl::StatusOr<control::JobStarted> StartJob(uint64_t job, const control::JobParameters& parameters) override;
  absl::StatusOr<int32_t> EncodePrompts(absl::Span<const control::JobParameters> jobs) override;
  absl::StatusOr<control::Stepping> Step(absl::Span<const uint64_t> jobs) override;
  bool steps_ahead() const override { return model_ != nullptr && !model_->device.is_cpu(); }
  absl::StatusOr<control::Decoding> Decode(uint64_t job) override;
  absl::StatusOr<control::LatentValues> Latents(uint64_t job) override;
  absl::StatusOr<control::LatentValues> Predict(uint64_t job, const control::LatentValues& latents,
                                                absl::Span<const uint64_t> others) override;
  absl::Status EndJob(uint64_t job) override { return jobs_.End(job); }
  absl::StatusOr<control::TrainingStarted> StartTraining(const control::TrainingStart& start) override;
  absl::StatusOr<control::SamplesPrepared> PrepareSamples(int64_t most) override;
  absl::StatusOr<control::Trained> Train() override;
  absl::StatusOr<control::TrainingSaved> SaveTraining(bool exports) override;
  absl::StatusOr<control::TrainingSaved> ExportTraining(const std::string& path) override;
  absl::StatusOr<control::TrainingEvaluated> EvaluateTraining() override;

 private:
  // Frees the model and all that was made of it.
  void Unload();
  // Calls `function` with the trainer.
  template <class Function>
  auto WithTrainer(const Function& function) -> decltype(function(std::declval<Trainer&>()));

  const WorkerRank place_;
  Guard guard_{place_};
  ModelLoader loader_;
  std::unique_ptr<LoadedModel> model_;
  ServedJobs jobs_{place_, guard_};        // of model_
  std::unique_ptr<TrainingRun> training_;  // of model_, since StartTraining
};

}  // namespace tessera::runtime
