// The jobs that have not ended, as the process knows them beside the store: where their tasks stand, and who watches.
// Not thread-safe: its owner calls it under one lock, listeners included.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/time.h"
#include "server/api/image_service.h"
#include "server/jobs/job_record.h"
#include "server/scheduling/request_scheduler.h"
#include "server/trace/trace_file.h"

namespace tessera {

// One image of a job, until it has ended.
struct LiveTask {
  SchedulerTask plan;  // as it is enqueued, and again when it is given back
  TracedImage image;
  OutputOptions output;
  int32_t partial_images = 0;
  // Once it is claimed.
  std::optional<TaskAttempt> attempt;
  std::shared_ptr<const JobParameters> parameters;  // most tasks only wait: they need no room for them
  GroupId group = 0;
  int32_t steps_done = 0;
  int32_t previews = 0;
  // Its picture has left the worker and is on its way to the disk: the worker's death is none of its business any more.
  bool decoded = false;
  // It has ended in the store, and is forgotten when the worker and the disk have let go of it.
  bool cancelled = false;
  // Its deadline has passed while it ran: it is on its way to fail.
  bool overdue = false;
  // To be enqueued again when the worker has let go of it.
  bool again = false;
  // What has become of it, or its start, waits for the disk.
  bool stuck = false;
};

struct Subscription {
  ImageService::Listener listener;
  bool active = true;
  std::set<int32_t> images;  // told already
};

class LiveJobs {
 public:
  LiveTask& Add(const QueuedTask& queued, const SchedulerTask& plan);
  LiveTask* Find(TaskId task);
  void Forget(TaskId task);  // an unknown one is no error

  // The tasks of a job that are known here; empty: none is.
  const std::set<TaskId>& TasksOf(const std::string& job) const;
  // Of those.
  int32_t StepsDone(const std::string& job) const;

  void Subscribe(const std::string& job, std::shared_ptr<Subscription> subscription);
  void Unsubscribe(const std::string& job, const std::shared_ptr<Subscription>& subscription);
  std::vector<std::string> Watched() const;  // jobs
  bool IsWatched(const std::string& job) const { return watches_.contains(job); }

  void Tell(const std::string& job, const JobEvent& event);
  // Nobody is told anything of any job any more.
  void LetGo(const absl::Status& reason);
  // The same of one job, until somebody subscribes to it again.
  void LetGo(const std::string& job, const absl::Status& reason);
  // Of the watched jobs those of which something waits for the disk.
  std::vector<std::string> Stuck() const;
  // The end: nobody is told anything of the job any more.
  void TellEnd(const std::string& job, const Job& ended);

 private:
  std::unordered_map<TaskId, LiveTask> tasks_;
  std::unordered_map<std::string, std::set<TaskId>> jobs_;
  std::map<std::string, std::vector<std::shared_ptr<Subscription>>> watches_;
};

}  // namespace tessera
