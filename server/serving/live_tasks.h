// The tasks that have not ended, as the process knows them beside the store, and those whose end the store cannot keep.
// Not thread-safe: ServiceMonitor guards it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/jobs/job_record.h"
#include "server/scheduling/request_scheduler.h"
#include "server/trace/trace_file.h"

namespace tessera::server {

// One image of a job, until it has ended.
struct LiveTask {
  SchedulerTask plan;  // as it is enqueued, and again when it is given back
  TracedImage image;
  OutputOptions output;
  int32_t partial_images = 0;
  std::vector<std::string> adapters;  // digests of those that it was accepted with
  // Once it is claimed.
  std::optional<TaskAttempt> attempt;
  std::shared_ptr<const control::JobParameters> parameters;  // most tasks only wait: they need no memory for them
  GroupId group = 0;
  int32_t steps_done = 0;
  int32_t previews = 0;
  // Its picture has left the worker and is on its way to the disk: the worker's death is none of its business any more.
  bool decoded = false;
  // It has ended in the store, and is forgotten when the worker and the disk have released it.
  bool cancelled = false;
  // Its deadline has passed since a group has it: it is on its way to fail, or will be once it is claimed.
  bool overdue = false;
  // Another server runs it.
  bool elsewhere = false;
  // As it is known here (MovesOf).
  int64_t moves = MovesOf(TaskState::kQueued, 0);
  // To be enqueued again when the worker has released it.
  bool again = false;
  // What has become of it, or its start, waits for the disk.
  bool stuck = false;
};

class LiveTasks {
 public:
  LiveTask& Add(const QueuedTask& queued, const SchedulerTask& plan);
  LiveTask* Find(TaskId task);
  void Forget(TaskId task);  // an unknown one is no error

  std::vector<TaskId> All() const;
  // The tasks of a job that are known here; empty: none is.
  const std::set<TaskId>& TasksOf(const std::string& job) const;
  int32_t StepsDone(const std::string& job) const;  // by those tasks
  bool IsStuck(const std::string& job) const;       // one of those tasks is
  std::set<std::string> NeededAdapters() const;     // digests of those of any task

  // For this process the task has failed then, although the store does not know it.
  void Lose(TaskId task, const absl::Status& error, absl::Time ended);
  // The record with the tasks that were lost.
  JobRecord WithLost(const JobRecord& record) const;

 private:
  struct LostTask {
    absl::Status error;
    absl::Time ended;
  };

  std::unordered_map<TaskId, LiveTask> tasks_;
  std::unordered_map<std::string, std::set<TaskId>> jobs_;
  std::map<TaskId, LostTask> lost_;
};

}  // namespace tessera::server
