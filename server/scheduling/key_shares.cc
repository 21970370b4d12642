#include "server/scheduling/key_shares.h"

#include <algorithm>
#include <cmath>

namespace tessera::server {

void KeyShares::SetWeights(const std::map<std::string, double>& weights) {
  for (auto& [name, key] : keys_) key.weight = 1;
  for (const auto& [name, weight] : weights) {
    if (weight > 0 && std::isfinite(weight)) keys_[name].weight = weight;
  }
}

void KeyShares::Promise(const std::string& name, int64_t tasks, double flops) {
  Key& key = keys_[name];
  key.promised += tasks;
  // Rounding errors must not outlive the reservations.
  key.promised_flops = key.promised == 0 ? 0 : key.promised_flops + flops;
}

void KeyShares::Add(const ScheduledTask& task) {
  Key& key = keys_[task.spec.key];
  if (key.live == 0) key.virtual_time = std::max(key.virtual_time, served_virtual_time_);
  ++key.live;
  key.flops += task.TotalFlops();
}

void KeyShares::Charge(ScheduledTask& task) {
  Key& key = keys_[task.spec.key];
  served_virtual_time_ = std::max(served_virtual_time_, key.virtual_time);
  task.charged = task.TotalFlops();
  task.charged_weight = key.weight;
  key.charged += task.charged;
  key.virtual_time += task.charged / key.weight;
}

void KeyShares::SetSteps(ScheduledTask& task, int32_t steps) {
  Key& key = keys_[task.spec.key];
  const double more = (steps - task.spec.steps) * task.step_flops;
  task.spec.steps = steps;
  task.charged += more;
  key.flops += more;
  key.charged += more;
  key.virtual_time += more / task.charged_weight;
}

void KeyShares::IssueStep(ScheduledTask& task) {
  ++task.issued;
  keys_[task.spec.key].flops -= task.step_flops;
}

void KeyShares::Remove(const ScheduledTask& task, bool lost) {
  Key& key = keys_[task.spec.key];
  --key.live;
  key.flops -= task.RemainingFlops();
  // Refund the operations that were charged but not executed.
  const bool decoded = task.phase == TaskPhase::kDecoding;
  const double done = lost || task.charged == 0 ? 0 : task.issued * task.step_flops + (decoded ? task.codec_flops : 0);
  key.charged -= task.charged - done;
  key.virtual_time -= (task.charged - done) / task.charged_weight;
}

const KeyShares::Key& KeyShares::Of(const std::string& name) const {
  static constexpr Key kNone;
  const auto key = keys_.find(name);
  return key == keys_.end() ? kNone : key->second;
}

}  // namespace tessera::server
