#include "server/workers/step_prediction.h"

#include <algorithm>
#include <cmath>

#include "control/model/model_cost.h"
#include "control/parameters/job_parameters.h"

namespace tessera::server {
namespace {

// Assumed operations per second of a slow rank before a step was observed: two threads of an old processor without a
// fast kernel for the dtype, or a small GPU in fp32.
constexpr double kSlowCpu = 2e9, kSlowDevice = 1e13;
// The weight of the newest observation if it is faster than the estimate.
constexpr double kNewest = 0.1;

absl::Duration Seconds(double seconds) {
  return std::isfinite(seconds) ? absl::Seconds(seconds) : absl::ZeroDuration();
}

}  // namespace

void StepPrediction::Describe(const control::ModelCost& cost) {
  cost_ = std::make_shared<const control::ModelCost>(cost);
}

void StepPrediction::Place(bool on_cpu) {
  seconds_per_flop_ = 1 / (on_cpu ? kSlowCpu : kSlowDevice);
  observed_ = false;
}

void StepPrediction::Start(uint64_t job, const control::JobParameters& parameters) {
  if (cost_ == nullptr) return;
  const control::ImageWork work = control::WorkOf(*cost_, parameters);
  jobs_[job] = {.step = control::StepFlops(*cost_, work), .decode = control::DecodeFlops(*cost_, work)};
}

double StepPrediction::StepFlopsOf(absl::Span<const uint64_t> jobs) const {
  double flops = 0;
  for (const uint64_t job : jobs) {
    const auto known = jobs_.find(job);
    if (known != jobs_.end()) flops += known->second.step;
  }
  return flops;
}

absl::Duration StepPrediction::Step(absl::Span<const uint64_t> jobs) const {
  return Seconds(StepFlopsOf(jobs) * seconds_per_flop_);
}

absl::Duration StepPrediction::Decode(uint64_t job) const {
  const auto known = jobs_.find(job);
  return known == jobs_.end() ? absl::ZeroDuration() : Seconds(known->second.decode * seconds_per_flop_);
}

void StepPrediction::Observe(absl::Span<const uint64_t> jobs, absl::Duration took) {
  const double seen = absl::ToDoubleSeconds(took) / StepFlopsOf(jobs);
  if (!std::isfinite(seen) || seen <= 0) return;
  seconds_per_flop_ = observed_ ? std::max(seen, seconds_per_flop_ + kNewest * (seen - seconds_per_flop_)) : seen;
  observed_ = true;
}

}  // namespace tessera::server
