// TrainingPlan predicts what a training run will do and need, from its configuration, its images and the model's
// description; nothing is loaded. Pure, except PrintPlan.
#pragma once

#include <cstdint>
#include <vector>

#include "control/training/config.h"
#include "control/training/dataset.h"
#include "control/training/model_training.h"

namespace tessera::control {
struct ModelDescription;
}

namespace tessera::client {

struct TrainingPlan {
  struct Images {
    control::Bucket bucket;
    int64_t samples = 0;
    int64_t visits = 0;  // per epoch
  };

  std::vector<Images> images;
  int64_t steps_per_epoch = 0;  // rounded up
  int64_t ranks = 1;
  int64_t images_of_a_rank = 1;  // in one pass of a replica
  // The share of a step during which each pipeline stage is idle, if all stages take equally long.
  double stages_idle = 0;
  control::LargestSample largest;
  control::TrainingMemory memory;  // of the rank that needs most, for the largest samples
  // How much smaller its activations are with parallelism.sequence_parallel; 0: there is one tensor rank.
  uint64_t sequence_parallel_saves = 0;
  // Operations of a step of the largest samples over all ranks: the forward pass counts once, the backward pass twice,
  // or once if the weights are frozen, and recomputation once more. 0: the model's shape is unknown.
  double step_flops = 0;
  // Size of one rank's products: image tokens of a pass, and features. 0: the model's shape is unknown.
  int64_t rows = 0, width = 0;
  // Operations per second of all ranks together. 0: unknown.
  double flops_per_second = 0;
  // Minimum duration of a step at that rate: products, and idle time of pipeline stages. 0: unknown.
  double step_seconds = 0;
};

// `set` has at least one sample.
TrainingPlan PlanTraining(const control::TrainConfig& config, const control::ModelDescription& model,
                          const control::TrainingSet& set);

void SetRate(double flops_per_second, TrainingPlan& plan);

// Prints the plan as lines for people or as one JSON object.
void PrintPlan(const TrainingPlan& plan, const control::TrainConfig& config, bool json);

}  // namespace tessera::client
