// The worker's answers to the command log: holds one rank's part of a model, and the jobs that run on it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "control/commands.h"
#include "models/families/families.h"
#include "parallel/communicator.h"
#include "parallel/forward_context.h"
#include "parallel/host/mesh_communicators.h"
#include "parallel/plan/mesh.h"
#include "parallel/rank_groups.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/samplers/sampler_config.h"
#include "runtime/worker/worker_rank.h"

namespace tessera {

// Used by one thread. LibTorch's exceptions become statuses here, without their stack traces. In a group of several
// ranks an exception poisons the group: the other ranks' calls end with it, and the group is of no more use. What all
// ranks find out alike (an invalid parameter, say) does not.
class Engine final : public CommandHandler {
 public:
  // The place is as MakeEngine says.
  explicit Engine(const WorkerRank& place = {});

  absl::StatusOr<ModelDescription> Describe(const std::string& model) override;
  absl::StatusOr<Loaded> Load(const LoadParameters& parameters) override;
  absl::StatusOr<JobStarted> StartJob(uint64_t job, const JobParameters& parameters) override;
  absl::StatusOr<Stepped> Step(absl::Span<const uint64_t> jobs) override;
  absl::StatusOr<Decoded> Decode(uint64_t job, RowSink rows) override;
  absl::StatusOr<LatentValues> Latents(uint64_t job) override;
  absl::StatusOr<LatentValues> Predict(uint64_t job, const LatentValues& latents,
                                       absl::Span<const uint64_t> beside) override;
  absl::Status EndJob(uint64_t job) override;

 private:
  struct Model {
    FamilyDescription description;
    SamplerConfig sampler;
    std::unique_ptr<Family> family;
  };
  struct Job {
    DenoiseJob denoise;
    int64_t height = 0, width = 0;  // of the image that comes out
  };

  // Before anything is read: that this rank's part of the model fits in memory, and the other ranks' parts too.
  absl::Status CheckMemory(const ModelFolder& folder, const LoadParameters& parameters, at::Device device);
  absl::StatusOr<JobStarted> Start(uint64_t id, const JobParameters& parameters);
  // The jobs of one batch, which agree in size and have a step left.
  absl::StatusOr<std::vector<DenoiseJob*>> BatchOf(absl::Span<const uint64_t> jobs);

  // Runs tensor code: see above.
  template <class Function>
  auto Guarded(const Function& function) -> decltype(function());
  void Poison(const std::string& reason);

  const WorkerRank place_;
  const Mesh mesh_;
  SingleRank one_;
  const std::unique_ptr<MeshCommunicators> communicators_;  // of several ranks
  const RankGroups groups_;
  LocalAttention attention_;
  ForwardContext context_{
      .attention = attention_, .tensor = one_, .world = groups_.world};  // of the text encoders and the autoencoder
  std::unique_ptr<Model> model_;
  std::map<uint64_t, Job> jobs_;
  std::unique_ptr<StepRecorder> recorder_;  // null: what blocks compute is not kept
  std::unique_ptr<Denoiser> denoiser_;      // of model_ and jobs_
};

}  // namespace tessera
