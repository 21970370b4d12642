// The worker's answers to the command log: holds one rank's part of a model, and the jobs that run on it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "control/command_handler.h"
#include "models/families/families.h"
#include "models/loading/freed_memory.h"
#include "models/loading/load_plan.h"
#include "parallel/communicator.h"
#include "parallel/forward_context.h"
#include "parallel/host/mesh_communicators.h"
#include "parallel/plan/mesh.h"
#include "parallel/rank_groups.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/device/mark.h"
#include "runtime/engine/loaded_adapters.h"
#include "runtime/samplers/sampler_config.h"
#include "runtime/training/trainer.h"
#include "runtime/training/training_groups.h"
#include "runtime/worker/worker_rank.h"

namespace tessera::runtime {

// Used by one thread. LibTorch's exceptions become statuses here, without their stack traces. In a group of several
// ranks an exception poisons the group: the other ranks' calls end with it, and the group is of no more use. What all
// ranks find out alike (an invalid parameter, say) does not, and they agree before a batch on whether it has the memory
// it needs. A device that fails for good is Unavailable, which ends the group.
class Engine final : public control::CommandHandler {
 public:
  using DeviceOpener = std::function<absl::StatusOr<at::Device>(const std::string& name)>;

  // The place is as MakeEngine says.
  explicit Engine(const WorkerRank& place = {});
  // `open_device` in place of OpenDevice, for devices that no user can name.
  Engine(const WorkerRank& place, DeviceOpener open_device);

  absl::StatusOr<control::ModelDescription> Describe(const std::string& model) override;
  absl::StatusOr<control::DeviceIdentity> Identify(const std::string& device) override;
  absl::StatusOr<control::Loaded> Load(const control::LoadParameters& parameters) override;
  absl::StatusOr<control::JobStarted> StartJob(uint64_t job, const control::JobParameters& parameters) override;
  absl::StatusOr<int32_t> EncodePrompts(absl::Span<const control::JobParameters> jobs) override;
  absl::StatusOr<control::Stepping> Step(absl::Span<const uint64_t> jobs) override;
  bool steps_ahead() const override { return model_ != nullptr && !model_->family->device().is_cpu(); }
  absl::StatusOr<control::Decoding> Decode(uint64_t job) override;
  absl::StatusOr<control::LatentValues> Latents(uint64_t job) override;
  absl::StatusOr<control::LatentValues> Predict(uint64_t job, const control::LatentValues& latents,
                                                absl::Span<const uint64_t> beside) override;
  absl::Status EndJob(uint64_t job) override;
  absl::StatusOr<control::TrainingStarted> StartTraining(const control::TrainingStart& start) override;
  absl::StatusOr<control::SamplesPrepared> PrepareSamples(int64_t most) override;
  absl::StatusOr<control::Trained> Train() override;
  absl::StatusOr<control::TrainingSaved> SaveTraining(bool exports) override;
  absl::StatusOr<control::TrainingSaved> ExportTraining(const std::string& path) override;
  absl::StatusOr<control::TrainingEvaluated> EvaluateTraining() override;

 private:
  struct Model {
    models::ModelFolder folder;
    models::FamilyDescription description;
    SamplerConfig sampler;
    std::unique_ptr<models::Family> family;
    bool trains = false;
    bool shares_texts = false;            // the ranks share the text encoders out
    control::ModelDescription described;  // where a training run was started
  };
  struct Job {
    DenoiseJob denoise;
    int64_t height = 0, width = 0;  // of the image that comes out
  };

  // The other ranks, and what the text encoders and the autoencoder know of them.
  struct Ranks {
    Ranks(at::Device device, const WorkerRank& place);

    parallel::SingleRank one;
    const std::unique_ptr<parallel::MeshCommunicators> communicators;  // of several ranks
    const std::unique_ptr<HostTrainingGroups> training_communicators;  // in place of them, where the ranks train
    const TrainingGroups training;                                     // of ranks that do not train, each alone
    const parallel::RankGroups groups;
    parallel::LocalAttention attention;
    const parallel::ForwardContext context;
  };

  // Frees the model and all that was made of it.
  void Unload();
  // Keeps the record of every step in this file from now on, if it names one.
  absl::Status OpenRecorder(const std::string& path);
  // Makes what they exchange tensors through, on the device that was opened.
  absl::Status JoinRanks();
  // On any thread. Throws CommError where another rank ends the wait.
  void WaitFor(const Mark& mark) const;

  // Whether it holds on this rank and on every other one, to all of which this call is made.
  bool OnEveryRank(bool holds);
  // What is left for this rank of what is free on its card: ranks on one card load at the same time, and each has a
  // part in proportion to what it needs. All ranks call it.
  struct DeviceShare {
    int64_t bytes = 0;
    int64_t ranks = 1;  // on the card
  };
  DeviceShare ShareOfDevice(int64_t free, int64_t needed);

  // Whether the ranks are to share the text encoders out; a single rank has nothing to share.
  bool SharesTexts(const control::LoadParameters& parameters) const;
  // Whether this rank encodes prompts.
  bool EncodesPrompts(bool shares_texts) const { return shares_texts || place_.rank_in_layout() == 0; }
  // What of these parameters cannot be trained with.
  absl::Status CheckTraining(const control::LoadParameters& parameters) const;
  // Before anything is read: how this rank's part of the model fits in memory, if all ranks' parts do.
  absl::StatusOr<models::LoadRequest> FitMemory(const models::ModelFolder& folder,
                                                const control::LoadParameters& parameters,
                                                const models::FamilyDescription& description);
  // What is encoded for a job; of the size that is denoised.
  models::PromptRequest PromptOf(const control::JobParameters& parameters) const;
  // The adapters of a job, added up; an error where any rank cannot read them, to all of which this call is made.
  absl::StatusOr<models::SharedAdapters> AdaptersOf(const control::JobParameters& parameters);
  // The sampler of a job, for what the model with its adapters predicts.
  absl::StatusOr<SamplerConfig> SamplerOf(const control::JobParameters& parameters,
                                          const models::SharedAdapters& adapters) const;
  absl::StatusOr<control::JobStarted> Start(uint64_t id, const control::JobParameters& parameters);
  // `picture`: the answer but for the seconds, which are added.
  absl::StatusOr<control::Decoded> MakePixels(const at::Tensor& latents, control::Decoded picture,
                                              control::RowSink rows);
  // The jobs of one batch, which agree in size and have a step left.
  absl::StatusOr<std::vector<DenoiseJob*>> BatchOf(absl::Span<const uint64_t> jobs);

  // Whether every rank has the memory that steps of this batch take, as far as can be known before; where one has not,
  // the error is that of all of them, and nothing was begun.
  absl::Status ReserveMemory(std::span<DenoiseJob* const> batch);

  // What LibTorch threw, as the user is told it.
  absl::Status StatusOf(const c10::Error& error) const;

  // Runs tensor code: see above. With gradients only where told so.
  template <class Function>
  auto Guarded(const Function& function, bool with_gradients = false) -> decltype(function());
  // Calls `function` with the trainer.
  template <class Function>
  auto WithTrainer(const Function& function) -> decltype(function(std::declval<Trainer&>()));
  void Poison(const std::string& reason);

  const WorkerRank place_;
  const DeviceOpener open_device_;
  const parallel::Mesh mesh_;
  at::Device device_ = at::kCPU;
  std::unique_ptr<Ranks> ranks_;  // since Load, which knows the device
  std::unique_ptr<Model> model_;
  std::unique_ptr<LoadedAdapters> adapters_;  // of model_
  std::unique_ptr<Trainer> trainer_;          // of model_, since StartTraining
  std::map<uint64_t, Job> jobs_;
  models::FreedMemory freed_memory_;        // by jobs that have ended
  std::unique_ptr<StepRecorder> recorder_;  // null: what blocks compute is not kept
  std::unique_ptr<Denoiser> denoiser_;      // of model_ and jobs_
};

}  // namespace tessera::runtime
