// One worker group of a server and the thread that drives it: starts its workers, proves its layout, loads its model,
// carries out the scheduler's plans, and starts it again when it has died. Workers that outlived a server which ended
// without a word are adopted with the model that they have loaded, if they are what this group would start.
//
// The runner knows no store, scheduler or watcher: its owner gives it work and hears what becomes of it. All calls of
// the owner are made on the runner's thread.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/log_line.h"
#include "server/api/image_service.h"
#include "server/image/image_file.h"
#include "server/jobs/failpoint.h"
#include "server/jobs/job_record.h"
#include "server/scheduling/request_scheduler.h"
#include "server/serving/group_record.h"
#include "server/trace/group_trace.h"
#include "server/verification/certify.h"
#include "server/workers/layout_choice.h"
#include "server/workers/worker_group.h"

namespace tessera {

// A task as the runner needs it.
struct RunnableTask {
  TracedImage image;
  JobParameters parameters;            // with the task's own seed
  std::vector<int32_t> preview_after;  // steps, rising
};

class GroupOwner {
 public:
  virtual ~GroupOwner() = default;

  // `room`: of its rank with the least, absent as in Loaded.
  virtual void OnReady(GroupId group, const std::optional<DeviceRoom>& room) = 0;
  // The group has died with all that was in it. `blameless`: no job is the cause, because it was stopped for results
  // that could not be trusted, or was replaced.
  virtual void OnDied(GroupId group, const absl::Status& reason, bool blameless) = 0;
  // The group cannot start, and takes no tasks until it is ready. It goes on trying.
  virtual void OnRefused(GroupId group) = 0;

  virtual StepPlan Next(GroupId group) = 0;
  // Waits until there may be something new, at most `patience`.
  virtual void WaitForWork(GroupId group, absl::Duration patience) = 0;

  // Of a task in a plan's `start`; an error: there is nothing to run any more.
  virtual absl::StatusOr<RunnableTask> Claim(GroupId group, TaskId task) = 0;
  virtual void OnStarted(GroupId group, TaskId task, const JobStarted& started) = 0;
  // What the model predicts for one of them is not the same beside the others as by itself: they and their like are to
  // share no batch.
  virtual void OnBatchDiffers(GroupId group, const std::vector<TaskId>& tasks) = 0;
  // A step of all of them is done.
  virtual void OnStepped(GroupId group, const std::vector<TaskId>& tasks, double seconds) = 0;
  virtual void OnPreview(GroupId group, TaskId task, const Image& image) = 0;
  virtual void OnDecoded(GroupId group, TaskId task, Image image, const JobStarted& started, double seconds) = 0;
  // The task has failed by itself; INVALID_ARGUMENT: the model refuses its request.
  virtual void OnFailed(GroupId group, TaskId task, const absl::Status& error) = 0;
  // A step of several tasks failed, and nobody knows whose fault it is.
  virtual void OnBatchFailed(GroupId group, const std::vector<TaskId>& tasks, const absl::Status& error) = 0;
  // The worker holds nothing of the task any more.
  virtual void OnEnded(GroupId group, TaskId task) = 0;
};

struct GroupRunnerOptions {
  GroupId id = 0;
  std::string name;
  std::string model_name;  // as requests call it
  ModelDescription model;
  LoadParameters load;
  Layout layout;
  CertifyPolicy certify = CertifyPolicy::kAuto;
  std::string certificates;  // folder
  std::string records;       // folder of group records; empty: workers end with this process
  std::string owner;         // of the workers, as in WorkerProcessOptions
  absl::Duration first_back_off = absl::Seconds(1);
  absl::Duration longest_back_off = absl::Seconds(60);
  absl::Duration start_patience = absl::Seconds(60);
  ProgressBounds progress;
  AtPoint at_point;            // before and after each record; may be empty
  TraceFile* trace = nullptr;  // outlives the runner
};

class GroupRunner {
 public:
  // `owner` outlives the runner. `log` is told what operators should know.
  GroupRunner(const GroupRunnerOptions& options, GroupOwner& owner, EventLog log);
  ~GroupRunner();  // as Stop

  // Kills the workers and ends the thread. Thread-safe, as the next ones are.
  void Stop();

  GroupInfo Info() const;
  bool is_ready() const;
  // The one of the options, until the guard has stopped it: then one rank goes on.
  Layout layout() const;

  // Ends its workers with all that is in them, and starts new ones at once. Nothing is done to a group that is not
  // ready.
  void Replace(const std::string& reason);
  // One that could not start tries again at once instead of after its pause.
  void TryNow();
  // For how long it has been waiting for the answer to what it asked its workers last.
  absl::Duration SinceLastAnswer() const;
  // What replacing it takes, by its last start.
  absl::Duration ReloadTime() const;

  // One real step of the smallest image, between the steps of the jobs. UNAVAILABLE where the group is not ready
  // or the step fails, DEADLINE_EXCEEDED where there is no answer in time.
  absl::Status Probe(absl::Duration patience);

 private:
  struct Running {
    RunnableTask task;
    JobStarted started;
    int32_t sent = 0;  // steps
  };
  struct Flight {
    uint64_t sequence = 0;
    std::vector<TaskId> tasks;
    std::vector<TaskId> apart;  // those of them that are stepped behind it, one by one
    absl::Time sent;
    absl::Time ended = absl::InfiniteFuture();  // at the latest
  };
  // What decides how a batch is computed.
  struct BatchShape {
    int32_t height = 0, width = 0;
    size_t tasks = 0;
    bool operator<(const BatchShape& other) const {
      return std::tie(height, width, tasks) < std::tie(other.height, other.width, other.tasks);
    }
  };

  void Run();
  absl::Status Open();
  absl::Status CheckLayout();
  absl::StatusOr<std::shared_ptr<WorkerGroup>> OpenGroup(const WorkerGroupOptions& options);
  // Makes it the one that Stop kills.
  absl::Status Use(const std::shared_ptr<WorkerGroup>& group);
  // Of the group that serves.
  WorkerGroupOptions ServingOptions() const;
  absl::Status Adopt();
  void KeepRecord(bool loaded);
  absl::Status Work();
  void Answered();  // by its workers
  absl::Status Start(TaskId task);
  // Leaves out tasks that fail before.
  absl::Status SendStep(std::vector<TaskId>& tasks);
  // Whether neighbours leave a task alone in a batch like this one, which is tried once.
  absl::StatusOr<bool> MayShare(std::vector<TaskId>& tasks);
  absl::StatusOr<double> WaitFor(const Flight& flight);
  absl::Status WaitForStep();
  // Whether the group is of no more use in its layout after a step that ended so.
  bool EndsGroup(const absl::Status& step);
  void TellStepped(const Flight& flight, double seconds);
  absl::Status ShowPreviews(const std::vector<TaskId>& tasks);
  absl::Status Decode(TaskId task);
  absl::Status End(TaskId task);
  absl::Status AnswerProbes();
  absl::Status MakeProbeStep();
  // The first step of a group that has just loaded its model.
  absl::Status WarmUp();
  void GiveUpLayout(const std::string& reason);
  void SetState(GroupState state, const std::string& reason = "");
  // With mutex_ held. Workers may be dead before the thread notices: then it is restarting already.
  GroupState State() const;
  bool Stopping() const;
  void Sleep(absl::Duration duration);

  const GroupRunnerOptions options_;
  GroupOwner& owner_;
  const EventLog log_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  bool stopping_ = false;
  std::shared_ptr<WorkerGroup> group_;  // the one in use, whatever for
  GroupState state_ = GroupState::kStarting;
  std::string reason_;
  Layout layout_;
  bool certified_ = false;
  int64_t restarts_ = 0;
  bool try_now_ = false;
  bool replaced_ = false;                           // the workers were ended by Replace
  absl::Duration reload_time_ = absl::Seconds(10);  // until it was measured
  absl::Duration answered_;                         // on the steady clock
  std::vector<std::shared_ptr<std::promise<absl::Status>>> probes_;

  // Of the thread.
  const GroupRecordFile record_;
  CertificateSubject subject_;  // of the layout in use
  bool may_adopt_ = true;       // until it has been tried
  std::optional<DeviceRoom> room_;
  std::map<TaskId, Running> running_;
  std::vector<Flight> flights_;          // in order
  std::set<BatchShape> proven_batches_;  // of the model as it is loaded
  bool has_made_images_ = false;
  GroupTrace trace_;
  std::thread thread_;
};

}  // namespace tessera
