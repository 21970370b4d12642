// GroupCapacity knows which images fit a group's memory and how fast the group makes them, from the model's cost, the
// group's description and the learned speed. Pure; one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/scheduling/group_table.h"
#include "server/scheduling/scheduler_options.h"
#include "server/scheduling/shape_class.h"

namespace tessera::control {
struct ModelCost;
}

namespace tessera::server {

class GroupCapacity final {
 public:
  GroupCapacity(const SchedulerOptions& options, const GroupTable& groups) : options_(options), groups_(groups) {}

  // Must be called before groups of the model are added. The cost may change while its tasks wait.
  void SetModel(const std::string& model, const control::ModelCost& cost);
  const std::map<std::string, std::shared_ptr<const control::ModelCost>>& models() const { return models_; }
  const control::ModelCost& CostOf(const std::string& model) const;

  // Returns the operations of encoding a task's pictures and of decoding its image. A pixel takes the encoder at most
  // what it takes the decoder, which has one layer more on every level.
  double CodecFlops(const ShapeClass& shape) const;

  // Fits: whether this many tasks can be one batch. MayShareBatch: whether they should be.
  bool Fits(const ScheduledGroup& group, const ShapeClass& shape, int32_t tasks) const;
  bool MayShareBatch(const ScheduledGroup& group, const ShapeClass& shape, int32_t tasks) const;
  bool CouldEverRun(const ShapeClass& shape) const;
  // FAILED_PRECONDITION: the model has no group. INVALID_ARGUMENT: the image is too large for every group. Messages may
  // be shown to callers.
  absl::Status CheckFits(const ShapeClass& shape) const;

  // IsLargeFor: whether such tasks run better on a group with more ranks. IsLargeForSmaller: whether that holds for
  // some ready group with fewer ranks than this one.
  bool IsLargeFor(const ScheduledGroup& group, const ShapeClass& shape) const;
  bool IsLargeForSmaller(const ScheduledGroup& group, const ShapeClass& shape) const;

  // Returns the operations per second of all ready groups of the model, or of all its groups if none is ready; 0
  // without groups.
  double Throughput(const std::string& model) const;

  // Returns a lower bound of the time that a group needs for this many such images one after another. It takes the
  // fastest group of the model whose memory they fit and LearnedSpeed::LeastSecondsPerFlop. Zero if they fit no group.
  absl::Duration LeastJobTime(const ShapeClass& shape, int32_t steps, int32_t tasks) const;
  // Returns a lower bound of the time that the group's unanswered steps take together; zero if it has none.
  absl::Duration LeastTimeInFlight(GroupId group) const;

 private:
  int64_t MostRows(const GroupDescription& group) const;
  // Returns the memory in bytes, without the weights, of the rank that needs most for a batch of tasks.
  double PeakBytesOf(const ShapeClass& shape, int32_t tasks, const GroupDescription& group) const;

  const SchedulerOptions& options_;
  const GroupTable& groups_;
  std::map<std::string, std::shared_ptr<const control::ModelCost>> models_;
};

}  // namespace tessera::server
