#include "runtime/engine/engine.h"

#include <malloc.h>

#include <utility>

#include "base/macros/status_macros.h"
#include "control/host/communicators.h"
#include "control/parameters/component_files.h"
#include "control/parameters/loaded.h"
#include "control/protocol/job_replies.h"
#include "runtime/device/device.h"
#include "runtime/engine/make_engine.h"

namespace tessera::runtime {

Engine::Engine(const WorkerRank& place) : Engine(place, [](const std::string& name) { return OpenDevice(name); }) {}

Engine::Engine(const WorkerRank& place, DeviceOpener open_device)
    : place_(place), loader_(place_, guard_, std::move(open_device)) {}

absl::StatusOr<control::ModelDescription> Engine::Describe(const std::string& model,
                                                           const control::ComponentFiles& files) {
  return ModelLoader::Describe(model, files);
}

absl::StatusOr<control::ModelDescription> Engine::Describe(const std::string& model) {
  return Describe(model, control::ComponentFiles());
}

absl::StatusOr<control::DeviceIdentity> Engine::Identify(const std::string& device) {
  ASSIGN_OR_RETURN(const kernels::DeviceIdentity identity, IdentifyDevice(device));
  return control::DeviceIdentity{
      .device = identity.device,
      .driver = identity.driver,
      .cudnn = identity.cudnn,
      .nccl = identity.nccl,
      .communicator = identity.joins_nccl ? control::kNcclCommunicator : control::kHostCommunicator};
}

void Engine::Unload() {
  training_.reset();
  jobs_.Clear();
  if (model_ != nullptr) {
    model_.reset();
    malloc_trim(0);  // the worker's allocator keeps what is freed, and the plan of the next model asks what is left
  }
  loader_.Release();
}

absl::StatusOr<control::Loaded> Engine::Load(const control::LoadParameters& parameters) {
  RETURN_IF_ERROR(loader_.Check(parameters));
  Unload();
  ASSIGN_OR_RETURN(model_, loader_.Load(parameters));
  return guard_.Run(
      [&]() -> absl::StatusOr<control::Loaded> {
        jobs_.Serve(*model_);
        return model_->loaded;
      },
      parameters.training);
}

absl::StatusOr<control::ModelDigest> Engine::Digest() {
  if (model_ == nullptr) return absl::FailedPreconditionError("no model is loaded");
  if (model_->contents == nullptr) return control::ModelDigest();
  ASSIGN_OR_RETURN(std::string contents, model_->contents->Finish());
  return control::ModelDigest{.contents = std::move(contents)};
}

absl::StatusOr<control::JobStarted> Engine::StartJob(uint64_t job, const control::JobParameters& parameters) {
  const Trainer* const trainer = training_ == nullptr ? nullptr : &training_->trainer();
  return guard_.Run([&] { return jobs_.Start(job, parameters, trainer); });
}

absl::StatusOr<int32_t> Engine::EncodePrompts(absl::Span<const control::JobParameters> jobs) {
  return guard_.Run([&] { return jobs_.EncodePrompts(jobs); });
}

absl::StatusOr<control::Stepping> Engine::Step(absl::Span<const uint64_t> jobs) {
  ASSIGN_OR_RETURN(control::Stepping stepping, guard_.Run([&] { return jobs_.Step(jobs); }));
  return [this, stepping = std::move(stepping)] { return guard_.Run(stepping); };
}

absl::StatusOr<control::Decoding> Engine::Decode(uint64_t job) {
  ASSIGN_OR_RETURN(control::Decoding decoding, guard_.Run([&] { return jobs_.Decode(job); }));
  return [this, decoding = std::move(decoding)](control::RowSink rows) {
    return guard_.Run([&] { return decoding(rows); });
  };
}

absl::StatusOr<control::LatentValues> Engine::Latents(uint64_t job) {
  return guard_.Run([&] { return jobs_.Latents(job); });
}

absl::StatusOr<control::LatentValues> Engine::Predict(uint64_t job, const control::LatentValues& latents,
                                                      absl::Span<const uint64_t> others) {
  return guard_.Run([&] { return jobs_.Predict(job, latents, others); });
}

absl::StatusOr<control::TrainingStarted> Engine::StartTraining(const control::TrainingStart& start) {
  training_.reset();
  if (model_ == nullptr || !model_->parameters.training) {
    return absl::FailedPreconditionError("no model is loaded for training");
  }
  return guard_.Run(
      [&]() -> absl::StatusOr<control::TrainingStarted> {
        ASSIGN_OR_RETURN(training_, TrainingRun::Start(start, *model_));
        return training_->trainer().started();
      },
      /*with_gradients=*/true);
}

template <class Function>
auto Engine::WithTrainer(const Function& function) -> decltype(function(std::declval<Trainer&>())) {
  if (training_ == nullptr) return absl::FailedPreconditionError("no training run has been started");
  return guard_.Run([&] { return function(training_->trainer()); }, /*with_gradients=*/true);
}

absl::StatusOr<control::SamplesPrepared> Engine::PrepareSamples(int64_t most) {
  return WithTrainer([&](Trainer& trainer) { return trainer.PrepareSamples(most); });
}

absl::StatusOr<control::Trained> Engine::Train() {
  return WithTrainer([](Trainer& trainer) { return trainer.Train(); });
}

absl::StatusOr<control::TrainingSaved> Engine::SaveTraining(bool exports) {
  return WithTrainer([&](Trainer& trainer) { return trainer.Save(exports); });
}

absl::StatusOr<control::TrainingSaved> Engine::ExportTraining(const std::string& path) {
  return WithTrainer([&](Trainer& trainer) { return trainer.ExportAdapterTo(path); });
}

absl::StatusOr<control::TrainingEvaluated> Engine::EvaluateTraining() {
  return WithTrainer([](Trainer& trainer) { return trainer.Evaluate(); });
}

std::unique_ptr<control::CommandHandler> MakeEngine(const WorkerRank& place) { return std::make_unique<Engine>(place); }

}  // namespace tessera::runtime
