// Trainer executes one rank's part of a training run, from a configuration or a checkpoint to the exported result.
//
// The transformer of a loaded family is trained in place, so that images can be generated between two steps. Every rank
// of the run makes the same calls in the same order; the result of a step is equal on all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/process_lock.h"
#include "control/protocol/training_commands.h"
#include "control/training/config.h"
#include "models/families/family.h"
#include "models/loading/sharded_weights.h"
#include "models/weights/model_folder.h"
#include "runtime/group/model_contents.h"
#include "runtime/samplers/sampler_config.h"
#include "runtime/training/checkpoints/checkpoint.h"
#include "runtime/training/checkpoints/checkpoint_folder.h"
#include "runtime/training/checkpoints/checkpoint_reader.h"
#include "runtime/training/data/data_order.h"
#include "runtime/training/exports/adapter_file.h"
#include "runtime/training/gradients.h"
#include "runtime/training/learning_rate.h"
#include "runtime/training/loss_mean.h"
#include "runtime/training/objective.h"
#include "runtime/training/optimizer.h"
#include "runtime/training/trained_adapter.h"
#include "runtime/training/training_groups.h"
#include "runtime/training/training_pass.h"
#include "runtime/training/training_samples.h"

namespace tessera::control {
struct ModelDescription;
}
namespace tessera::models {
struct Adapter;
}

namespace tessera::runtime {

// The model to train and its ranks. Everything here must outlive the trainer.
struct TrainedModel {
  const models::ModelFolder& folder;
  const control::ModelDescription& description;
  const SamplerConfig& scheduler;
  models::Family& family;     // loaded for training
  models::TensorShard shard;  // this rank's shard of its matrices
  const TrainingGroups& groups;
};

// Used by one thread, which must not be in c10::InferenceMode.
class Trainer final {
 public:
  // Reads the folders of datasets and, if `start` names one, the checkpoint. InvalidArgument describes what is wrong
  // with the configuration; other errors are those of control/training/dataset.h and checkpoints/checkpoint.h.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const control::TrainingStart& start,
                                                         const TrainedModel& model);

  control::TrainingStarted started() const;

  // These are as in control::CommandHandler.
  absl::StatusOr<control::SamplesPrepared> PrepareSamples(int64_t most);
  absl::StatusOr<control::Trained> Train();
  absl::StatusOr<control::TrainingSaved> Save(bool exports);
  absl::StatusOr<control::TrainingSaved> ExportAdapterTo(const std::string& path);
  absl::StatusOr<control::TrainingEvaluated> Evaluate();

  // What the model is trained to predict; replaces its scheduler's setting.
  PredictionType prediction_type() const { return objective_.prediction_type(); }
  // The current adapter, for jobs between two steps; null if all weights are trained.
  models::SharedAdapters adapters() const;

 private:
  Trainer(control::TrainConfig config, const TrainedModel& model, base::ProcessLock output, ModelContents base,
          Objective objective, control::TrainingSet set, DataOrder order, TrainedAdapter adapter,
          const models::Adapter& assistant);

  bool trains_adapter() const { return !adapter_.params.empty(); }
  // Prefix of the trained tensors' names in checkpoints.
  const char* WeightPrefix() const { return trains_adapter() ? "adapter." : "transformer."; }

  // Resumes from that folder, or for "latest" from the run's newest complete checkpoint. If there is none, "latest"
  // starts a new run.
  absl::Status Resume(const std::string& checkpoint);
  // Returns an empty path if there is none.
  absl::StatusOr<std::string> FindLatest();
  // InvalidArgument if all steps of the configuration are done and their export exists.
  absl::Status CheckNotDone() const;
  // Makes the output contain only the checkpoints that lead to the resumed one: copies a checkpoint that was read from
  // elsewhere into the output, then moves the checkpoints of other branches aside.
  absl::Status ContinueItsLine();
  void WarnOf(const SetAside& aside, const std::string& reason);
  // The state that a checkpoint stores in addition to its tensors; and the tensors.
  std::string StateJson() const;
  // Returns the number of optimizer steps. INVALID_ARGUMENT if this run cannot continue from that state.
  absl::StatusOr<int64_t> ReadState(const std::string& state, const std::string& name);
  std::vector<Piece> Pieces() const;

  // Called on rank 0. Exports the checkpoint's weights, or their moving averages if these are kept, as a model folder
  // or an adapter's files, and returns the path.
  absl::StatusOr<std::string> Export(const std::string& checkpoint) const;
  std::string ExportPath() const;
  absl::StatusOr<std::string> ExportAdapter(CheckpointReader& reader) const;
  absl::Status WriteAdapterOf(const std::string& checkpoint, const std::string& path) const;
  // Called on every rank. Writes the checkpoint of this step, to which rank 0 adds the adapter in PEFT's folder format.
  // Returns a warning if only that failed, otherwise an empty text.
  absl::StatusOr<std::string> WriteOwnCheckpoint() const;
  // Adds the adapter to the checkpoint, as the second part of WriteOwnCheckpoint.
  std::string ShowAsAdapter() const;
  absl::StatusOr<AdapterExport> ServedAdapterOf(CheckpointReader& reader) const;
  // Prefix of the names of a checkpoint's tensors that are exported.
  const char* ServedPrefix() const { return config_.train.ema_decay > 0 ? "ema." : WeightPrefix(); }

  // Recomputes the order and the digest after pictures were left out. INVALID_ARGUMENT if the run resumes from a
  // checkpoint, because that was trained on all of them.
  absl::Status OrderAgain();
  // The samples of this rank's replica in these passes of the order.
  std::vector<int64_t> SamplesOf(int64_t first, int64_t passes);
  // `number` is the index of the first visit in the run's order.
  TrainingBatch BatchOf(std::span<const SampleVisit> visits, int64_t number) const;
  // Adds the pictures at which the model looks for these samples, whose sizes are the same in all of them.
  void AddReferences(std::span<const SampleVisit> visits, TrainingBatch& batch) const;
  SampleKey KeyOf(const SampleVisit& visit) const;

  const control::TrainConfig config_;
  const base::ProcessLock output_lock_;  // on rank 0, which writes the output
  const TrainedModel model_;
  const std::string base_digest_;  // digest of the model's contents
  const Objective objective_;
  std::string data_digest_;  // digest of the samples
  TrainingSamples samples_;
  DataOrder order_;
  const TrainedAdapter adapter_;                           // without parameters if all weights are trained
  const parallel::AdapterFactors training_factors_;        // those of the adapter and of the assistant adapter
  const std::string assistant_digest_;                     // empty if there is no assistant adapter
  const std::shared_ptr<models::ShardedWeights> sharded_;  // the model's; null: every replica holds all weights
  TrainingPass pass_;
  Gradients gradients_;
  AdamW optimizer_;
  const int64_t trained_parameters_;  // on all pipeline stages
  const LearningRate learning_rate_;
  int64_t step_ = 0;    // steps done, skipped ones included
  int64_t cursor_ = 0;  // batches taken from the order
  LossMean loss_mean_;  // of the steps that changed weights
  std::string resumed_from_;
  std::vector<std::string> warnings_;
};

}  // namespace tessera::runtime
