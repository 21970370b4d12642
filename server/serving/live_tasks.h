// LiveTasks holds the unfinished tasks with the state that only this process knows, and the tasks whose end the store
// cannot record. Not thread-safe: ServiceMonitor guards it.
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
#include "server/image/image_format.h"
#include "server/jobs/job_record.h"
#include "server/scheduling/request_scheduler.h"
#include "server/trace/trace_file.h"

namespace tessera::server {

// One unfinished image of a job.
struct LiveTask {
  SchedulerTask plan;  // for enqueueing it, also after it was given back
  TracedImage image;
  OutputOptions output;
  int32_t partial_images = 0;
  std::vector<std::string> contents;  // digests of the contents that its request names (base/fields/content_fields.h)
  // Set once the task is claimed.
  std::optional<TaskAttempt> attempt;
  std::shared_ptr<const control::JobParameters> parameters;  // null while the task waits, to save memory
  GroupId group = 0;
  int32_t steps_done = 0;
  int32_t previews = 0;
  double group_seconds = 0;  // its part of the group's time for encoding, steps and decoding that is not counted yet
  // Its picture has left the worker and is being written to the disk, so the worker's death no longer affects it.
  bool decoded = false;
  // The task has ended in the store. It is forgotten when the worker and the disk have released it.
  bool cancelled = false;
  // Its deadline passed while a group had it: its failure is being stored, or will be once it is claimed.
  bool overdue = false;
  // Another server executes it.
  bool elsewhere = false;
  // Another server exports the image's span.
  bool exported_elsewhere = false;
  // The number of its moves known here (MovesOf).
  int64_t moves = MovesOf(TaskState::kQueued, 0);
  // It is enqueued again when the worker has released it.
  bool again = false;
  // Its outcome or its claim waits for the disk.
  bool stuck = false;
};

class LiveTasks {
 public:
  LiveTask& Add(const QueuedTask& queued, const SchedulerTask& plan);
  LiveTask* Find(TaskId task);
  void Forget(TaskId task);  // an unknown id is no error

  std::vector<TaskId> All() const;
  // Returns the known tasks of a job; empty if there are none.
  const std::set<TaskId>& TasksOf(const std::string& job) const;
  int32_t StepsDone(const std::string& job) const;  // sum over those tasks
  bool IsStuck(const std::string& job) const;       // whether one of those tasks is stuck
  // Digests of all tasks' contents, and of those that are held.
  std::set<std::string> NeededContents() const;
  // Holds the contents of a task that only other servers have, until it is released.
  void HoldContents(TaskId task, const control::JobParameters& parameters);
  void ReleaseContents(TaskId task) { held_.erase(task); }

  // Records that the task has failed for this process, although the store does not know it.
  void Lose(TaskId task, const absl::Status& error, absl::Time ended);
  // Returns the record with the lost tasks marked as failed.
  JobRecord WithLost(const JobRecord& record) const;

 private:
  struct LostTask {
    absl::Status error;
    absl::Time ended;
  };

  std::unordered_map<TaskId, LiveTask> tasks_;
  std::unordered_map<std::string, std::set<TaskId>> jobs_;
  std::map<TaskId, LostTask> lost_;
  std::map<TaskId, std::vector<std::string>> held_;
};

}  // namespace tessera::server
