// Derives from a model's description what training needs: the sizes that the model accepts, the modules that an adapter
// changes, and the memory that a rank uses. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "control/model/swapped_blocks.h"
#include "control/training/buckets.h"
#include "control/training/config.h"
#include "control/training/dataset.h"

namespace tessera::control {

struct ModelDescription;
struct PictureRules;

// Sides are whole numbers of image tokens and within the model's limits.
BucketRule BucketRuleOf(const ModelDescription& model);

// The side of the square that the model generates by default, rounded to what BucketRuleOf allows.
int64_t DefaultResolution(const ModelDescription& model);

// The pictures at which a model with these rules looks, which others only begin from or take none.
ControlRules ControlRulesOf(const PictureRules& pictures);

// Selects the images that a run of this model reads. The result refers to the config's datasets.
DatasetOptions DatasetOptionsOf(const TrainConfig& config, const ModelDescription& model);

// The modules that an adapter changes if network.target_modules is empty, as suffixes of diffusers' module names: the
// projections of attention, including those of the text if it takes part in the same attention.
std::vector<std::string> DefaultTargetModules(const ModelDescription& model);

// Number of weights of an unsharded adapter on the modules that it selects or, if it selects none, on the default
// modules. If the model's modules are unknown, the default ones are taken as width x width.
int64_t AdapterParameters(const ModelDescription& model, const TrainNetwork& network);

// Returns the error of CheckTargets for network.target_modules; OK if the model's modules are unknown.
absl::Status CheckTargetModules(const TrainConfig& config, const ModelDescription& model);

// InvalidArgument if the model has too few blocks for train.blocks_to_swap, or if the run cannot swap them: with
// weights sharded over the data ranks, a swapped block would be unsharded.
absl::Status CheckBlocksToSwap(int64_t blocks_to_swap, const ModelDescription& model);
absl::Status CheckBlocksToSwap(const TrainConfig& config, const ModelDescription& model);

// InvalidArgument if train.prediction_type is set for a model that is trained by flow matching only.
absl::Status CheckPredictionType(const TrainConfig& config, const ModelDescription& model);

// Number of parameters of blocks [begin, end) that are kept in host memory, and of the device buffers that they are
// copied to: one for the block in use and one for the next block.
struct SwappedParameters {
  double waiting = 0, buffers = 0;
};
SwappedParameters SwappedParametersOf(const ModelDescription& model, int64_t blocks_to_swap, int64_t begin,
                                      int64_t end);

// The tokens of a sample's pictures in a block: those of the pictures, and those that stand for them in the prompt.
int64_t ControlTokens(const ModelDescription& model, absl::Span<const ControlPicture> pictures);

// The size of a run's largest samples.
struct LargestSample {
  Bucket bucket;
  int64_t control_tokens = 0;
};
LargestSample LargestSampleOf(const TrainingSet& set, const ModelDescription& model);

// Bytes in training, on the rank that needs most.
struct TrainingMemory {
  uint64_t weights = 0;      // of the transformer: as quantized in its file, in the computation's dtype, or in 8 bits
  uint64_t adapter = 0;      // under NetworkType::kLora
  uint64_t gradients = 0;    // fp32
  uint64_t optimizer = 0;    // fp32 master weights, both moments, the moving average
  uint64_t activations = 0;  // activations saved for the gradients
  // Before the first step, while samples are encoded: all of the above except activations, with text encoders and
  // autoencoder on the device, or with products of text encoders that wait in main memory because they would not fit.
  uint64_t encoding = 0, encoding_waiting = 0;

  // In a step.
  uint64_t total() const { return weights + adapter + gradients + optimizer + activations; }
};

// Estimates the memory for batches of samples of this size from shapes alone. A pipeline stage holds its blocks' share
// of the weights, and the activations of as many micro-batches as 1F1B has in flight there. Under ZeroStage::kFull a
// rank holds its share of all weights and one gathered block; blocks in host memory count as SwappedParametersOf says.
// In a 16-bit run, a block keeps 34 bytes per token and feature if attention keeps no scores; tensor ranks shard 24 of
// them, or all 34 in the sequence-parallel form (Korthikanti et al., "Reducing activation recomputation in large
// transformer models", 2022). With recomputation, the inputs of all blocks are kept, and one block's activations with
// their gradients.
// Unknown shapes count as zero.
TrainingMemory PredictMemory(const TrainConfig& config, const ModelDescription& model, const LargestSample& sample);

}  // namespace tessera::control
