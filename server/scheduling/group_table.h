// The worker groups that the configuration promises, up or not, and what each of them has. Pure; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "server/scheduling/cost_model.h"
#include "server/scheduling/learned_speed.h"
#include "server/scheduling/scheduled_task.h"
#include "server/scheduling/scheduler_options.h"

namespace tessera::server {

struct GroupDescription {
  GroupId id = 0;
  std::string model;
  int32_t ranks = 1;
  int32_t max_rows = 1;      // of one batch
  double memory_bytes = 0;   // of one rank beside the weights, at most ever; 0: not known, nothing is refused for it
  std::string memory_limit;  // what bounds that, as a sentence without its full stop; empty: the device
  double free_bytes = 0;     // of one rank, for batches of several; 0: not known
  GroupShare share;
  // Of all ranks together, which no group of its kind surpasses: what it may do for all that is known before its first
  // step.
  double most_flops_per_second = 2e15;
};

// Of one plan.
struct StepsInFlight {
  ShapeClass shape;
  double flops = 0;   // of one step
  int32_t count = 1;  // that are unanswered
};

struct ScheduledGroup {
  GroupDescription description;
  LearnedSpeed speed;
  bool ready = false;
  bool draining = false;
  bool retired = false;
  std::vector<TaskId> residents;  // in the order of their starts
  std::deque<StepsInFlight> in_flight;
  std::set<ShapeClass> apart;  // classes whose tasks share no batch here

  // What is left of the task takes this group, by what it has learned; and what so many operations take at the least.
  double Seconds(const ScheduledTask& task) const {
    return task.RemainingFlops() * speed.SecondsPerFlop(task.spec.shape);
  }
  double LeastSeconds(const ShapeClass& shape, double flops) const {
    return flops * speed.LeastSecondsPerFlop(shape, 1 / description.most_flops_per_second);
  }
};

class GroupTable final {
 public:
  explicit GroupTable(const SchedulerOptions& options) : options_(options) {}

  // Groups that are not up yet count for admission.
  void Add(const GroupDescription& group) {
    const double speed = options_.initial_flops_per_second * std::max(1, group.ranks);
    groups_.insert_or_assign(group.id, ScheduledGroup{.description = group, .speed = LearnedSpeed(1 / speed)});
  }
  void Remove(GroupId id) {  // not ready
    const ScheduledGroup* group = Find(id);
    if (group != nullptr && group->residents.empty() && !group->ready) groups_.erase(id);
  }

  ScheduledGroup* Find(GroupId id) {
    const auto group = groups_.find(id);
    return group == groups_.end() ? nullptr : &group->second;
  }
  const ScheduledGroup* Find(GroupId id) const { return const_cast<GroupTable*>(this)->Find(id); }
  const std::map<GroupId, ScheduledGroup>& all() const { return groups_; }

  void OnReady(GroupId id) {
    ScheduledGroup* group = Find(id);
    if (group == nullptr) return;
    group->ready = true;
    group->draining = group->retired = false;
    group->apart.clear();
  }
  // From now on the group starts nothing new; it finishes what it has.
  void Drain(GroupId id) {
    if (ScheduledGroup* group = Find(id)) group->draining = true;
  }

  // No task is in its workers; one that is not known has none.
  bool IsEmpty(GroupId id) const {
    const ScheduledGroup* group = Find(id);
    return group == nullptr || group->residents.empty();
  }
  int64_t resident() const {
    int64_t count = 0;
    for (const auto& [id, group] : groups_) count += static_cast<int64_t>(group.residents.size());
    return count;
  }
  int64_t ResidentOf(const std::string& model) const {
    int64_t count = 0;
    for (const auto& [id, group] : groups_) {
      if (group.description.model == model) count += static_cast<int64_t>(group.residents.size());
    }
    return count;
  }

 private:
  const SchedulerOptions& options_;
  std::map<GroupId, ScheduledGroup> groups_;
};

}  // namespace tessera::server
