// Which images a group has memory for and how fast it makes them: from the cost of its model, what it has, and what it
// has learned. Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/cost_model.h"
#include "server/scheduling/group_table.h"
#include "server/scheduling/scheduler_options.h"

namespace tessera::server {

class GroupCapacity final {
 public:
  GroupCapacity(const SchedulerOptions& options, const GroupTable& groups) : options_(options), groups_(groups) {}

  // Before groups of the model. Its cost may change while tasks of it wait.
  void SetModel(const std::string& model, const ModelCost& cost) { models_[model] = cost; }
  const std::map<std::string, ModelCost>& models() const { return models_; }
  const ModelCost& CostOf(const std::string& model) const;

  // Whether so many tasks can be one batch, and whether they should be.
  bool Fits(const ScheduledGroup& group, const ShapeClass& shape, int32_t tasks) const;
  bool MayShareBatch(const ScheduledGroup& group, const ShapeClass& shape, int32_t tasks) const;
  bool CouldEverRun(const ShapeClass& shape) const;
  // FAILED_PRECONDITION: no group of the model; INVALID_ARGUMENT: too large for all. The messages are fit for callers.
  absl::Status CheckFits(const ShapeClass& shape) const;

  // Such tasks better run on a group with more ranks; and some ready group with fewer ranks would say so.
  bool IsLargeFor(const ScheduledGroup& group, const ShapeClass& shape) const;
  bool IsLargeForSmaller(const ScheduledGroup& group, const ShapeClass& shape) const;

  // Operations a second of all groups of the model that are ready, of all that are promised where none is. 0: no group.
  double Throughput(const std::string& model) const;

  // What so many such images take a group at the least, one after another: by the fastest group of the model that has
  // room for them, and by LearnedSpeed::LeastSecondsPerFlop. Zero where no group has.
  absl::Duration LeastJobTime(const ShapeClass& shape, int32_t steps, int32_t tasks) const;
  // What the unanswered steps of the group take together, at the least; zero where it has none.
  absl::Duration LeastTimeInFlight(GroupId group) const;

 private:
  int64_t MostRows(const GroupDescription& group) const;

  const SchedulerOptions& options_;
  const GroupTable& groups_;
  std::map<std::string, ModelCost> models_;
};

}  // namespace tessera::server
