// ServedJobs holds the jobs of a loaded model: it starts them, denoises them in batches, and decodes their pictures.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "control/protocol/command_handler.h"
#include "models/loading/freed_memory.h"
#include "runtime/denoising/denoiser.h"
#include "runtime/engine/guard.h"
#include "runtime/engine/loaded_adapters.h"
#include "runtime/engine/model_loader.h"
#include "runtime/group/worker_rank.h"
#include "runtime/training/trainer.h"

namespace tessera::runtime {

struct JobPictures;  // runtime/engine/job_pictures.h
struct KeptPixels;

// Methods execute commands of control::CommandHandler. All but End throw what tensor code throws: the caller runs them,
// and the functions that they return, with a Guard. Used by one thread, except for the returned functions.
class ServedJobs final {
 public:
  // `place` and `guard` outlive this object.
  ServedJobs(const WorkerRank& place, const Guard& guard) : place_(place), guard_(guard) {}

  // From now on jobs run on this model, which outlives the next Clear.
  void Serve(LoadedModel& model);
  // Drops all jobs, and all that was made of the model.
  void Clear();

  // `trainer` trains the model; null if it is not being trained.
  absl::StatusOr<control::JobStarted> Start(uint64_t id, const control::JobParameters& parameters,
                                            const Trainer* trainer);
  absl::StatusOr<int32_t> EncodePrompts(absl::Span<const control::JobParameters> jobs);
  absl::StatusOr<control::Stepping> Step(absl::Span<const uint64_t> jobs);
  absl::StatusOr<control::Decoding> Decode(uint64_t id);
  absl::StatusOr<control::LatentValues> Latents(uint64_t id);
  absl::StatusOr<control::LatentValues> Predict(uint64_t id, const control::LatentValues& latents,
                                                absl::Span<const uint64_t> others);
  absl::Status End(uint64_t id);

 private:
  struct Job {
    DenoiseJob denoise;
    int64_t height = 0, width = 0;           // of the image that comes out
    std::shared_ptr<const KeptPixels> kept;  // of its picture; null: none, or another rank has them
  };
  // Objects made of the model.
  struct Served {
    LoadedModel& model;
    LoadedAdapters adapters;
    Denoiser denoiser;
  };

  // Returns what is encoded for a job; of the size that is denoised.
  models::PromptRequest PromptOf(const control::JobParameters& parameters) const;
  // Returns the sum of a job's adapters; an error if any rank cannot read them, to all of which this call is made.
  absl::StatusOr<models::SharedAdapters> AdaptersOf(const control::JobParameters& parameters, const Trainer* trainer);
  // Returns the pictures of a job whose image is generated at `size`; an error if any rank cannot read them.
  absl::StatusOr<JobPictures> PicturesOf(const control::JobParameters& parameters, control::ImageSize size);
  // Returns the sampler of a job, for what the model with its adapters predicts.
  absl::StatusOr<SamplerConfig> SamplerOf(const control::JobParameters& parameters,
                                          const models::SharedAdapters& adapters, const Trainer* trainer) const;
  // Returns the same conditioning on every rank.
  absl::StatusOr<models::EncodedPrompt> Encode(const models::PromptRequest& prompt);

  absl::StatusOr<Job*> Find(uint64_t id);
  // Returns the jobs of one batch, which agree in size and have a step left.
  absl::StatusOr<std::vector<DenoiseJob*>> BatchOf(absl::Span<const uint64_t> jobs);
  // Returns an error on all ranks, and nothing was begun, if one of them lacks the memory that steps of this batch
  // take, as far as can be known before.
  absl::Status ReserveMemory(std::span<DenoiseJob* const> batch);
  // `picture` is the answer except for the channels and the seconds. `kept` may be null.
  absl::StatusOr<control::Decoded> MakePixels(const at::Tensor& latents, const KeptPixels* kept,
                                              control::Decoded picture, control::RowSink rows) const;

  const WorkerRank& place_;
  const Guard& guard_;
  std::unique_ptr<Served> served_;  // since Serve
  std::map<uint64_t, Job> jobs_;
  models::FreedMemory freed_memory_;  // by jobs that have ended
};

}  // namespace tessera::runtime
