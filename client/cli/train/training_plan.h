// What a training run will do and need, from its configuration, its images and the description of its model: nothing is
// loaded. Pure but for PrintPlan.
#pragma once

#include <cstdint>
#include <vector>

#include "control/model_description.h"
#include "control/training/config.h"
#include "control/training/dataset.h"
#include "control/training/model_training.h"

namespace tessera::client {

struct TrainingPlan {
  struct Images {
    control::Bucket bucket;
    int64_t samples = 0;
    int64_t visits = 0;  // in an epoch
  };

  std::vector<Images> images;
  int64_t steps_per_epoch = 0;  // rounded up
  int64_t ranks = 1;
  int64_t images_of_a_rank = 1;  // in one pass of a replica
  // The share of a step for which each pipeline stage waits for the others, where all take equally long.
  double stages_idle = 0;
  control::Bucket largest;         // by its area
  control::TrainingMemory memory;  // of the rank that needs most, for that bucket
  // By which its activations are less with parallelism.sequence_parallel than without; 0: tensor ranks are alone.
  uint64_t sequence_parallel_saves = 0;
  // Of a step over all ranks, at the largest bucket: of a forward pass once, of the backward pass twice, or once where
  // the weights are frozen, and with recomputation once more. 0: the model's shape is not known.
  double step_flops = 0;
  // Of one rank's products: image tokens of a pass, and features. 0: the model's shape is not known.
  int64_t rows = 0, width = 0;
  // What all ranks together can do in a second. 0: not known.
  double flops_per_second = 0;
  // The least that a step takes at that rate: of products alone, and the waits of pipeline stages. 0: not known.
  double step_seconds = 0;
};

// `set` has at least one sample.
TrainingPlan PlanTraining(const control::TrainConfig& config, const control::ModelDescription& model,
                          const control::TrainingSet& set);

void SetRate(double flops_per_second, TrainingPlan& plan);

// As lines for people, or as one JSON object.
void PrintPlan(const TrainingPlan& plan, const control::TrainConfig& config, bool json);

}  // namespace tessera::client
