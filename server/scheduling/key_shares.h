// KeyShares holds each key's tasks in the scheduler and the share of the groups that it was charged. Pure; one thread.
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
    double virtual_time = 0;    // charged operations by weight; a new task advances an idle key to the others
    double charged = 0;         // operations
    int64_t live = 0;           // tasks that wait or run
    double flops = 0;           // predicted operations that these tasks still need
    int64_t promised = 0;       // tasks reserved by tickets
    double promised_flops = 0;  // predicted operations of the reserved tasks
  };

  // Weights are > 0; keys that are not named get 1. Charges made before keep their old weight.
  void SetWeights(const std::map<std::string, double>& weights);

  // Negative numbers take a reservation back.
  void Promise(const std::string& key, int64_t tasks, double flops);

  // The transitions of a task: it waits; it starts and is charged; the worker replies how many steps it runs; one of
  // its steps is issued; it is removed. If a task is lost with its group, its key is charged nothing for it.
  void Add(const ScheduledTask& task);
  void Charge(ScheduledTask& task);
  void SetSteps(ScheduledTask& task, int32_t steps);
  void IssueStep(ScheduledTask& task);
  void Remove(const ScheduledTask& task, bool lost);

  const Key& Of(const std::string& key) const;  // an unknown key has no tasks and no charges
  const std::map<std::string, Key>& all() const { return keys_; }

 private:
  std::map<std::string, Key> keys_;
  double served_virtual_time_ = 0;
};

}  // namespace tessera::server
