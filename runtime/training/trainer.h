// One rank's part in a training run: from a configuration, or a checkpoint, step by step to what is served.
//
// The transformer of a loaded family is trained in place, so that images may be made between two steps. Every rank of
// the run makes the same calls in the same order; what a step returns is equal on all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/process_lock.h"
#include "control/commands.h"
#include "control/training/config.h"
#include "models/families/family.h"
#include "models/weights/model_folder.h"
#include "runtime/engine/model_contents.h"
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
#include "runtime/training/sharded_weights.h"
#include "runtime/training/trained_adapter.h"
#include "runtime/training/training_groups.h"
#include "runtime/training/training_pass.h"
#include "runtime/training/training_samples.h"

namespace tessera::runtime {

// What is trained, and where. All of it outlives the trainer.
struct TrainedModel {
  const models::ModelFolder& folder;
  const control::ModelDescription& description;
  const SamplerConfig& scheduler;
  models::Family& family;     // loaded for training
  models::TensorShard shard;  // this rank's part of its matrices
  const TrainingGroups& groups;
};

// Used by one thread, which is not in c10::InferenceMode.
class Trainer final {
 public:
  // Reads the data's folders and, where `start` names one, the checkpoint. InvalidArgument names what is wrong with the
  // configuration; errors of control/training/dataset.h and of checkpoints/checkpoint.h.
  static absl::StatusOr<std::unique_ptr<Trainer>> Create(const control::TrainingStart& start,
                                                         const TrainedModel& model);

  control::TrainingStarted started() const;

  // As in control::CommandHandler.
  absl::StatusOr<control::SamplesPrepared> PrepareSamples(int64_t most);
  absl::StatusOr<control::Trained> Train();
  absl::StatusOr<control::TrainingSaved> Save(bool exports);
  absl::StatusOr<control::TrainingSaved> ExportAdapterTo(const std::string& path);
  absl::StatusOr<control::TrainingEvaluated> Evaluate();

  // What the model is trained to predict, in place of what its scheduler says.
  PredictionType prediction_type() const { return objective_.prediction_type(); }
  // The adapter as it stands, for jobs between two steps; null where all weights are trained.
  models::SharedAdapters adapters() const;

 private:
  Trainer(control::TrainConfig config, const TrainedModel& model, base::ProcessLock output, ModelContents base,
          Objective objective, control::TrainingSet set, DataOrder order, TrainedAdapter adapter);

  bool trains_adapter() const { return !adapter_.params.empty(); }
  // Of the names of what is trained in checkpoints.
  const char* WeightPrefix() const { return trains_adapter() ? "adapter." : "transformer."; }

  // Goes on from that folder, or from the newest whole checkpoint of the run; where "latest" finds no checkpoint at
  // all, a new run begins.
  absl::Status Resume(const std::string& checkpoint);
  // Empty where there is none.
  absl::StatusOr<std::string> FindLatest();
  // InvalidArgument where the configuration's steps are done and what is made of them is there.
  absl::Status CheckNotDone() const;
  // The output's checkpoints become those of the line of steps that ends with the resumed one: a checkpoint that was
  // read from elsewhere is written into the output, and then what is of another branch moves aside.
  absl::Status ContinueItsLine();
  void WarnOf(const SetAside& aside, const std::string& reason);
  // What a checkpoint says of itself, in whose tensors it is not; and the tensors.
  std::string StateJson() const;
  // Returns the steps of the optimizer; INVALID_ARGUMENT where this run cannot go on from there.
  absl::StatusOr<int64_t> ReadState(const std::string& state, const std::string& name);
  std::vector<Piece> Pieces() const;

  // On rank 0: what that checkpoint has of the weights, or of their averages where these are kept, as a model folder or
  // an adapter's files; the path.
  absl::StatusOr<std::string> Export(const std::string& checkpoint) const;
  std::string ExportPath() const;
  absl::StatusOr<std::string> ExportAdapter(CheckpointReader& reader) const;
  absl::Status WriteAdapterOf(const std::string& checkpoint, const std::string& path) const;
  // On every rank: the checkpoint of this step, in which rank 0 puts the adapter as PEFT's folders have it. Returns a
  // warning where that alone failed, else an empty text.
  absl::StatusOr<std::string> WriteOwnCheckpoint() const;
  // The second half of that.
  std::string ShowAsAdapter() const;
  absl::StatusOr<AdapterExport> ServedAdapterOf(CheckpointReader& reader) const;
  // Of the names of what is served of a checkpoint.
  const char* ServedPrefix() const { return config_.train.ema_decay > 0 ? "ema." : WeightPrefix(); }

  // The order and the digest become those of the samples that are left once pictures were left out. INVALID_ARGUMENT
  // where the run goes on from a checkpoint, which was trained on all of them.
  absl::Status OrderAgain();
  // Those of this rank's replica in passes of the order.
  std::vector<int64_t> SamplesOf(int64_t first, int64_t passes);
  // `number` is that of the first visit in the run's order.
  TrainingBatch BatchOf(std::span<const SampleVisit> visits, int64_t number) const;
  SampleKey KeyOf(const SampleVisit& visit) const;

  const control::TrainConfig config_;
  const base::ProcessLock output_lock_;  // on rank 0, which writes what the output has
  const TrainedModel model_;
  const std::string base_digest_;  // of the model's contents
  const Objective objective_;
  std::string data_digest_;  // of what the samples are
  TrainingSamples samples_;
  DataOrder order_;
  const TrainedAdapter adapter_;                   // without parameters where all weights are trained
  const std::shared_ptr<ShardedWeights> sharded_;  // of the model; null: every replica has all of them
  TrainingPass pass_;
  Gradients gradients_;
  AdamW optimizer_;
  const int64_t trained_parameters_;  // on all stages
  const LearningRate learning_rate_;
  int64_t step_ = 0;    // done, those that were skipped included
  int64_t cursor_ = 0;  // batches that were taken from the order
  LossMean loss_mean_;  // of the steps that changed something
  std::string resumed_from_;
  std::vector<std::string> warnings_;
};

}  // namespace tessera::runtime
