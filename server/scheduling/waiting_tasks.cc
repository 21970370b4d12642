#include "server/scheduling/waiting_tasks.h"

namespace tessera::server {

void WaitingTasks::Add(const std::string& key, const WaitingClass& of, const WaitingTask& task, double flops) {
  Key& waiting = keys_[key];
  waiting.classes[of].insert(task);
  ++waiting.tasks;
  Load& load = loads_[of];
  ++load.tasks;
  load.flops += flops;
  ++size_;
  if (of.isolated) ++isolated_;
  flops_ += flops;
}

void WaitingTasks::Remove(const std::string& key, const WaitingClass& of, const WaitingTask& task, double flops) {
  const auto waiting = keys_.find(key);
  --waiting->second.tasks;
  const auto tasks = waiting->second.classes.find(of);
  tasks->second.erase(task);
  if (tasks->second.empty()) waiting->second.classes.erase(tasks);
  if (waiting->second.classes.empty()) keys_.erase(waiting);
  const auto load = loads_.find(of);
  load->second.flops -= flops;
  if (--load->second.tasks == 0) loads_.erase(load);
  --size_;
  if (of.isolated) --isolated_;
  // Rounding errors must not outlive the tasks.
  flops_ = size_ == 0 ? 0 : flops_ - flops;
}

void WaitingTasks::VisitKeys(absl::FunctionRef<void(const std::string& key, int64_t tasks)> visit) const {
  for (const auto& [key, waiting] : keys_) visit(key, waiting.tasks);
}

void WaitingTasks::VisitClasses(absl::FunctionRef<void(const WaitingClass& of, const Ordered& tasks)> visit) const {
  for (const auto& [key, waiting] : keys_) {
    for (const auto& [of, tasks] : waiting.classes) visit(of, tasks);
  }
}

std::optional<uint64_t> WaitingTasks::Earliest(const std::string& key,
                                               absl::FunctionRef<bool(const WaitingClass&)> class_passes,
                                               absl::FunctionRef<bool(uint64_t id)> task_passes) const {
  const auto waiting = keys_.find(key);
  if (waiting == keys_.end()) return std::nullopt;
  const WaitingTask* earliest = nullptr;
  for (const auto& [of, tasks] : waiting->second.classes) {
    if ((earliest != nullptr && !(*tasks.begin() < *earliest)) || !class_passes(of)) continue;
    for (const WaitingTask& task : tasks) {
      if (earliest != nullptr && !(task < *earliest)) break;
      if (!task_passes(task.id)) continue;
      earliest = &task;
      break;
    }
  }
  if (earliest == nullptr) return std::nullopt;
  return earliest->id;
}

int64_t WaitingTasks::Rank(const std::string& key, const WaitingTask& task) const {
  const auto waiting = keys_.find(key);
  if (waiting == keys_.end()) return 0;
  int64_t before = 0;
  for (const auto& [of, tasks] : waiting->second.classes) before += static_cast<int64_t>(tasks.order_of_key(task));
  return before;
}

double WaitingTasks::Flops(absl::FunctionRef<bool(const WaitingClass&)> class_passes) const {
  double flops = 0;
  for (const auto& [of, load] : loads_) {
    if (class_passes(of)) flops += load.flops;
  }
  return flops;
}

}  // namespace tessera::server
