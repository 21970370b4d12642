// StepPrediction predicts how long a group's next step takes, so that a long step can be distinguished from a hang. It
// counts operations from the model's description and converts them to seconds with the speed observed in this group.
// Overestimates rather than underestimates. Pure; for one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "absl/time/time.h"
#include "absl/types/span.h"

namespace tessera::control {
struct JobParameters;
struct ModelCost;
}  // namespace tessera::control

namespace tessera::server {

class StepPrediction final {
 public:
  // Sets the model's cost. Before this is called, all predicted times are 0.
  void Describe(const control::ModelCost& cost);
  // Sets where the model runs and discards earlier observations.
  void Place(bool on_cpu);

  void Start(uint64_t job, const control::JobParameters& parameters);
  void End(uint64_t job) { jobs_.erase(job); }

  // The duration of one step of these jobs in one batch, on all ranks of the group.
  absl::Duration Step(absl::Span<const uint64_t> jobs) const;
  absl::Duration Decode(uint64_t job) const;

  // Records the duration of a step. A slower step than predicted counts fully at once, faster ones gradually.
  void Observe(absl::Span<const uint64_t> jobs, absl::Duration took);

 private:
  struct Flops {
    double step = 0, decode = 0;
  };

  double StepFlopsOf(absl::Span<const uint64_t> jobs) const;

  std::shared_ptr<const control::ModelCost> cost_;  // null: unknown
  double seconds_per_flop_ = 0;
  bool observed_ = false;
  std::map<uint64_t, Flops> jobs_;
};

}  // namespace tessera::server
