// Tests which bugs the steps of a run on several ranks would detect.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "tests/support/planted_bug.h"
#include "tests/support/trainer_runs.h"

namespace tessera::runtime {
namespace {

// Returns the largest relative difference of a topology's losses and gradient norms from those of one rank.
double WorstError(const TrainerRuns& runs, const control::TrainParallelism& parallelism, const std::string& output) {
  control::TrainConfig config = runs.Config(output);
  const TrainerRuns::Result serial = runs.Run(config, 2).front();
  config.parallelism = parallelism;
  config.output += "-ranks";
  double worst = 0;
  for (const TrainerRuns::Result& rank : runs.Run(config, 2)) {
    if (!rank.status.ok() || serial.steps.size() != rank.steps.size()) return INFINITY;
    for (size_t i = 0; i < rank.steps.size(); ++i) {
      const control::Trained &a = serial.steps[i], &b = rank.steps[i];
      worst = std::max(
          {worst, std::abs(a.loss - b.loss) / a.loss, std::abs(a.gradient_norm - b.gradient_norm) / a.gradient_norm});
    }
  }
  return worst;
}

TEST(PlantedTrainerTest, OtherNoiseOnTheRanksOfAReplicaIsNoticed) {
  const TrainerRuns runs("pixart_sigma");
  for (const control::TrainParallelism& parallelism :
       {control::TrainParallelism{.ulysses = 2}, control::TrainParallelism{.tensor = 2}}) {
    const std::string name = parallelism.tensor > 1 ? "tensor" : "ulysses";
    SCOPED_TRACE(name);
    EXPECT_LE(WorstError(runs, parallelism, name), 1e-10);
    const PlantedBug planted("noise_of_own_rank");
    EXPECT_GE(WorstError(runs, parallelism, name + "-planted"), 1e-4);
  }
}

}  // namespace
}  // namespace tessera::runtime
