// Simulates a service around a RequestScheduler: workers take as long as the predicted operations require, and the
// clock jumps from event to event.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/scheduling/request_scheduler.h"

namespace tessera {

struct TaskOutcome {
  std::string key;
  absl::Time enqueued, started, ended;
  int steps = 0;      // included in plans so far
  bool done = false;  // decoded
  server::GroupId group = -1;
};

class SchedulerSimulation {
 public:
  explicit SchedulerSimulation(const server::SchedulerOptions& options);

  // `flops_per_second` is the speed of the whole group.
  void AddGroup(const server::GroupDescription& group, double flops_per_second);

  void Submit(const server::SchedulerTask& task);
  void Cancel(server::TaskId task);
  // Plants a bug: the service marks the task as cancelled without notifying the scheduler.
  void ForgetToCancel(server::TaskId task) { cancelled_.insert(task); }
  std::vector<server::TaskId> KillGroup(server::GroupId group);
  void ReviveGroup(server::GroupId group);

  // Runs until all workers are idle or the clock reaches `end`.
  void RunUntil(absl::Time end);
  void RunUntilIdle() { RunUntil(absl::InfiniteFuture()); }

  server::RequestScheduler& scheduler() { return scheduler_; }
  absl::Time now() const { return now_; }
  const std::map<server::TaskId, TaskOutcome>& outcomes() const { return outcomes_; }
  const std::vector<std::string>& log() const { return log_; }     // every plan, for comparisons
  absl::Duration idle_while_waiting(server::GroupId group) const;  // time without a step while tasks waited
  // Steps that named a task after it was cancelled.
  int steps_after_cancel(server::TaskId task) const;
  double flops_of(const std::string& key) const;

 private:
  struct Worker {
    double flops_per_second = 1;
    absl::Time free_at;  // when its current work is done
    std::vector<server::TaskId> decoding;
    absl::Duration idle;
    bool up = true;
  };
  struct Event {
    server::GroupId group = 0;
    int epoch = 0;
    server::TaskId task = 0;  // the task that ends; 0: a step ends
    bool started = false;
    double seconds = 0;
  };

  void Advance(server::GroupId group);

  server::RequestScheduler scheduler_;
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  std::map<server::GroupId, Worker> workers_;
  std::map<server::GroupId, int> epochs_;
  std::multimap<absl::Time, Event> events_;
  std::map<server::TaskId, server::SchedulerTask> specs_;
  std::map<server::TaskId, TaskOutcome> outcomes_;
  std::map<server::TaskId, int> after_cancel_;
  std::set<server::TaskId> cancelled_;
  std::map<std::string, double> flops_;
  std::vector<std::string> log_;
};

// Returns 1 operation and 1 byte (in fp32) per token, none per pair and none for decoding, so that a step of an n x n
// image costs n².
control::ModelCost UnitCost();

// Gives a model that cost.
void SetUnitCost(server::RequestScheduler& scheduler, const std::string& model);

server::SchedulerTask SmallTask(server::TaskId id, const std::string& key, int32_t steps, int32_t size = 8);

}  // namespace tessera
