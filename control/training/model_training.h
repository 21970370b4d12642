// What the description of a model says of its training: which sizes it takes, which of its modules an adapter changes,
// and how much memory a rank will need. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "control/model_description.h"
#include "control/training/buckets.h"
#include "control/training/config.h"
#include "control/training/dataset.h"

namespace tessera::control {

// Sides are of whole image tokens and within what the model takes.
BucketRule BucketRuleOf(const ModelDescription& model);

// The side of the square that the model makes unless told otherwise, as BucketRuleOf allows it.
int64_t DefaultResolution(const ModelDescription& model);

// Which images a run of that model reads. What it returns refers to the config's datasets.
DatasetOptions DatasetOptionsOf(const TrainConfig& config, const ModelDescription& model);

// The ends of the names, as diffusers has them, of the modules that an adapter changes where network.target_modules is
// empty: the projections of attention, those of the text too where it takes part in the same attention.
std::vector<std::string> DefaultTargetModules(const ModelDescription& model);

// Weights that an adapter of that rank on the default modules has; the rank of the largest, without sharding.
int64_t AdapterParameters(const ModelDescription& model, int64_t rank);

// Which blocks of a transformer wait in the host's memory where `swapped` of them do: spread evenly, the last one among
// them, so that up to half of the blocks alternate with some that stay, behind whose computation a copy hides.
std::vector<int64_t> SwappedBlocks(int64_t blocks, int64_t swapped);

// InvalidArgument unless the model has as many blocks as train.blocks_to_swap says, and the run may swap them: where
// data ranks share out the weights of every block, those of a block that waits would be there in whole.
absl::Status CheckBlocksToSwap(int64_t blocks_to_swap, const ModelDescription& model);
absl::Status CheckBlocksToSwap(const TrainConfig& config, const ModelDescription& model);

// InvalidArgument where train.prediction_type is set for a model that is trained by flow matching alone.
absl::Status CheckPredictionType(const TrainConfig& config, const ModelDescription& model);

// Parameters of blocks [begin, end) that wait in the host's memory, and those of the buffers which they pass through on
// the device: one block is in use and the next one on its way.
struct SwappedParameters {
  double waiting = 0, buffers = 0;
};
SwappedParameters SwappedParametersOf(const ModelDescription& model, int64_t blocks_to_swap, int64_t begin,
                                      int64_t end);

// Bytes on the rank that needs most, while it trains.
struct TrainingMemory {
  uint64_t weights = 0;      // of the transformer in the dtype of the computation, or in 8 bits
  uint64_t adapter = 0;      // under NetworkType::kLora
  uint64_t gradients = 0;    // fp32
  uint64_t optimizer = 0;    // fp32 master weights, both moments, the moving average
  uint64_t activations = 0;  // that wait for their gradients

  uint64_t total() const { return weights + adapter + gradients + optimizer + activations; }
};

// An estimate for batches of that bucket, from shapes alone. A pipeline stage has its blocks' share of the weights, and
// activations of as many micro-batches as 1F1B has under way there. Under ZeroStage::kFull a rank has its share of all
// weights and one block that is gathered; blocks that wait in the host's memory count as SwappedParametersOf says. A
// block keeps 34 bytes of a 16-bit run for each token and feature where
// attention keeps no scores, of which tensor ranks share out 24, and 34 in the sequence-sharded form (Korthikanti et
// al., "Reducing activation recomputation in large transformer models", 2022); recomputation keeps one block's and the
// inputs of all. Text encoders and the autoencoder are not in it: they are needed until everything is cached. Shapes
// that are not known count nothing.
TrainingMemory PredictMemory(const TrainConfig& config, const ModelDescription& model, const Bucket& bucket);

}  // namespace tessera::control
