// What a group's next step is predicted to take, for who has to tell a long one from one that hangs: operations by the
// model's description, turned into seconds by what the group was seen to need. Errs on the long side. Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "control/job_parameters.h"
#include "control/model_description.h"
#include "server/scheduling/cost_model.h"

namespace tessera::server {

class StepPrediction final {
 public:
  // Nothing is predicted of a model that is not known: all times are 0.
  void Describe(const control::ModelDescription& model);
  // Where it will run; what was observed elsewhere is forgotten.
  void Place(bool on_cpu);

  void Start(uint64_t job, const control::JobParameters& parameters);
  void End(uint64_t job) { jobs_.erase(job); }

  // One step of these jobs together, on all ranks of the group.
  absl::Duration Step(absl::Span<const uint64_t> jobs) const;
  absl::Duration Decode(uint64_t job) const;

  // A step of these jobs took so long. A slower one counts at once, faster ones little by little.
  void Observe(absl::Span<const uint64_t> jobs, absl::Duration took);

 private:
  struct Flops {
    double step = 0, decode = 0;
  };

  double StepFlopsOf(absl::Span<const uint64_t> jobs) const;

  struct Model {
    control::ModelDescription description;
    ModelCost cost;
  };
  std::optional<Model> model_;
  double seconds_per_flop_ = 0;
  bool observed_ = false;
  std::map<uint64_t, Flops> jobs_;
};

}  // namespace tessera::server
