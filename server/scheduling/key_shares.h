// What each key has in the scheduler, and the share of the groups that it was charged. Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "server/scheduling/scheduled_task.h"

namespace tessera::server {

class KeyShares final {
 public:
  struct Key {
    double weight = 1;
    double virtual_time = 0;    // charged operations by weight, never behind those that were served
    double charged = 0;         // operations
    int64_t live = 0;           // tasks that wait or run
    double flops = 0;           // predicted, that these still need
    int64_t promised = 0;       // tasks, by tickets
    double promised_flops = 0;  // predicted, of these
  };

  // Each > 0; keys that are not named have 1. What was charged to a key before stays as it was.
  void SetWeights(const std::map<std::string, double>& weights);

  // Negative numbers take a promise back.
  void Promise(const std::string& key, int64_t tasks, double flops);

  // In the life of a task: it waits; it starts and is charged; a step of it is issued; it is known no more. A task that
  // is lost with its group has its key pay for nothing.
  void Add(const ScheduledTask& task);
  void Charge(ScheduledTask& task);
  void IssueStep(ScheduledTask& task);
  void Remove(const ScheduledTask& task, bool lost);

  const Key& Of(const std::string& key) const;  // one that was never named has nothing
  const std::map<std::string, Key>& all() const { return keys_; }

 private:
  std::map<std::string, Key> keys_;
  double served_virtual_time_ = 0;
};

}  // namespace tessera::server
