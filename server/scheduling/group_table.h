// GroupTable holds the configured worker groups, running or not, with their tasks and state. Pure; one thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "control/model/group_share.h"
#include "server/scheduling/learned_speed.h"
#include "server/scheduling/scheduled_task.h"
#include "server/scheduling/scheduler_options.h"
#include "server/scheduling/shape_class.h"

namespace tessera::server {

struct GroupDescription {
  GroupId id = 0;
  std::string model;
  int32_t ranks = 1;
  int32_t max_rows = 1;      // per batch
  double memory_bytes = 0;   // bound of one rank's memory excluding weights; 0: unknown, no task is refused for it
  std::string memory_limit;  // what limits memory_bytes, as a sentence without its full stop; empty: the device
  double free_bytes = 0;     // memory of one rank that batches of several tasks may use; 0: unknown
  control::GroupShare share;
  // Upper bound for all ranks together that no hardware of this kind exceeds. It limits the group's speed before its
  // first step is measured.
  double most_flops_per_second = 2e15;
};

// The unanswered steps of one plan.
struct StepsInFlight {
  ShapeClass shape;
  double flops = 0;   // per step
  int32_t count = 1;  // unanswered steps
};

struct ScheduledGroup {
  GroupDescription description;
  LearnedSpeed speed;
  bool ready = false;
  bool draining = false;
  bool retired = false;
  std::vector<TaskId> residents;  // in the order in which they started
  std::deque<StepsInFlight> in_flight;
  std::set<ShapeClass> apart;  // classes whose tasks share no batch in this group

  // Seconds: predicted time for the rest of the task at the learned speed. LeastSeconds: lower bound of the time for
  // this many operations.
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

  // Groups that are not running yet count for admission.
  void Add(const GroupDescription& group) {
    const double speed = options_.initial_flops_per_second * std::max(1, group.ranks);
    groups_.insert_or_assign(group.id, ScheduledGroup{.description = group, .speed = LearnedSpeed(1 / speed)});
  }
  void Remove(GroupId id) {  // must not be ready
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
  // From now on the group starts no new tasks; it finishes those it has.
  void Drain(GroupId id) {
    if (ScheduledGroup* group = Find(id)) group->draining = true;
  }

  // Returns whether no task is in the group's workers; true for an unknown group.
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
