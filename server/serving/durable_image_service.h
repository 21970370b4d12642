// The service over real models: jobs are kept by the job store, planned by the scheduler and run by worker groups.
//
// A submission is durable before it is answered; what was queued or running when the process ended is queued again when
// the next one starts. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/clock.h"
#include "server/jobs/job_store.h"
#include "server/log_line.h"
#include "server/scheduling/request_scheduler.h"
#include "server/service/image_service.h"
#include "server/service/task_pool.h"
#include "server/serving/group_runner.h"
#include "server/serving/live_jobs.h"
#include "server/serving/service_metrics.h"
#include "server/trace/queue_trace.h"

namespace tessera {

// count equal replicas.
struct ServedGroupOptions {
  std::string name;                  // of the model, as requests call it
  std::vector<std::string> aliases;  // what they may call it too
  LoadParameters load;               // with the model's folder; threads are those of all ranks together, 0: its share
  std::vector<std::string> devices;  // one a rank where there are several
  LayoutRequest layout;
  int64_t count = 1;
};

// Bytes.
struct HostMemory {
  double total = 0;      // of the machine, or what its control group (container) may have of it
  double available = 0;  // of it, now
};

struct DurableServiceOptions {
  std::string data_folder;  // made if need be
  std::vector<ServedGroupOptions> groups;
  CertifyPolicy certify = CertifyPolicy::kAuto;
  bool ready_when_durable = false;  // ready while jobs can be accepted, warm groups or not
  absl::Duration retention = absl::Hours(24);
  int64_t retention_bytes = 0;  // of the images of ended jobs; the oldest jobs go first; 0: no bound
  int64_t max_queued_jobs = 10000;
  absl::Duration max_expected_wait = absl::ZeroDuration();  // until a new job would start; zero: no bound
  absl::Duration first_back_off = absl::Seconds(1);         // before a group that died starts again; it doubles
  ProgressBounds progress;
  std::string vfs;                 // SQLite's name of the job store's file layer; empty: the system's own
  ResultFiles* results = nullptr;  // in place of files in data_folder; outlives the service
  absl::Duration disk_patience = absl::Seconds(5);  // with a disk that takes nothing, before those who wait are told
  std::function<HostMemory()> host_memory;          // for groups on the CPU; null: not known, nothing is refused for it
  AtPoint at_point;                                 // of the job store and of the groups' records; may be empty
  TraceFile* trace = nullptr;                       // outlives the service
  bool openai_names = true;                         // the first model answers to the names of OpenAI's image models
  EventLog log;                                     // what operators should know
};

class DurableImageService final : public ImageService, private GroupOwner {
 public:
  // Describes every model, opens the job store, and lets the groups start on threads of their own. Errors: models that
  // cannot be read, layouts that cannot be, a data folder that cannot be used or is another process's.
  static absl::StatusOr<std::unique_ptr<DurableImageService>> Start(const DurableServiceOptions& options);
  ~DurableImageService() override;  // kills the groups; what runs is queued again by the next process

  absl::StatusOr<Submitted> Submit(const Caller& caller, const JobRequest& request,
                                   const std::optional<IdempotencyKey>& idempotency) override;
  absl::StatusOr<std::optional<Submitted>> FindSubmission(const Caller& caller,
                                                          const IdempotencyKey& idempotency) override;
  void CountRejection(const absl::Status& refused) override;
  absl::StatusOr<Job> Get(const Caller& caller, absl::string_view job) override;
  absl::StatusOr<JobPage> List(const Caller& caller, const ListOptions& options) override;
  absl::StatusOr<Job> Cancel(const Caller& caller, absl::string_view job) override;
  absl::StatusOr<std::unique_ptr<JobWatch>> Watch(const Caller& caller, absl::string_view job,
                                                  Listener listener) override;
  absl::StatusOr<ImageBytes> ReadImage(const Caller& caller, absl::string_view image) override;
  std::vector<ServedModel> ListModels() override;
  ServerInfo Info() override;
  absl::Status Ready() override;
  absl::Status Probe() override;
  std::string MetricsText() override;

  // Of the work while several keys want some, by tenant; one that is not named has 1.
  void SetShares(const std::map<std::string, double>& shares);

  // Accepts no more jobs, and lets those that run end until `patience` is over; the others are given back to the queue.
  void Drain(absl::Duration patience);

 private:
  class Watching;

  struct Finished {
    TaskAttempt attempt;
    LiveTask task;
    Image image;
    JobStarted started;
    Layout layout;
    LoadParameters load;
    const ServedModel* model = nullptr;
  };

  explicit DurableImageService(const DurableServiceOptions& options);
  absl::Status Open();

  // GroupOwner.
  void OnReady(GroupId group, const std::optional<DeviceRoom>& room) override;
  void OnDied(GroupId group, const absl::Status& reason, bool guard) override;
  void OnRefused(GroupId group) override;
  StepPlan Next(GroupId group) override;
  void WaitForWork(GroupId group, absl::Duration patience) override;
  absl::StatusOr<RunnableTask> Claim(GroupId group, TaskId task) override;
  void OnStarted(GroupId group, TaskId task, const JobStarted& started) override;
  void OnStepped(GroupId group, const std::vector<TaskId>& tasks, double seconds) override;
  void OnPreview(GroupId group, TaskId task, const Image& image) override;
  void OnDecoded(GroupId group, TaskId task, Image image, const JobStarted& started, double seconds) override;
  void OnFailed(GroupId group, TaskId task, const absl::Status& error) override;
  void OnBatchDiffers(GroupId group, const std::vector<TaskId>& tasks) override;
  void OnBatchFailed(GroupId group, const std::vector<TaskId>& tasks, const absl::Status& error) override;
  void OnEnded(GroupId group, TaskId task) override;

  absl::Time Now() const { return store_->Now(); }
  absl::Status AddGroups();
  std::string RecordsFolder() const { return options_.data_folder + "/workers"; }
  // What workers of servers before have left that were killed with them.
  void RemoveLeftovers() const;
  // Shares the machine's memory among the groups that are on its CPU.
  void ShareMemory(std::vector<GroupDescription>& groups) const;
  // The ranks of all groups that are on one of this group's devices: the most of them.
  int64_t RanksBeside(const GroupRunnerOptions& group) const;
  void Enqueue(const QueuedTask& queued, uint64_t ticket);
  static absl::Status Draining();  // what callers are told who come too late
  absl::StatusOr<Submitted> Accept(const Caller& caller, const JobRequest& request,
                                   const std::optional<IdempotencyKey>& idempotency);
  // Whether a new job may be kept: the scheduler's ticket for it.
  absl::StatusOr<uint64_t> Admit(const Caller& caller, const JobRequest& request);
  absl::StatusOr<Submitted> Keep(const Caller& caller, const JobRequest& request,
                                 const std::optional<IdempotencyKey>& idempotency, uint64_t ticket);
  void Changed() {
    ++generation_;
    changed_.notify_all();
  }
  const ServedModel* FindServed(const std::string& id) const;
  bool IsReady(const ServedModel& model) const;                   // a group of it is
  std::optional<absl::Duration> ExpectedWait(TaskId task) const;  // absent also while no group of its model is ready
  Job JobOf(const JobRecord& record);
  // The record with what the store could not keep.
  JobRecord WithLost(const JobRecord& record) const;
  int64_t RunningJobs() const;

  // Does `write` until it succeeds or is refused: what happened to the tasks is told to the disk even when that is full
  // for a while. CANCELLED when the process ends first: it will be told by the next one.
  absl::Status Persist(const std::vector<TaskId>& tasks, const std::function<absl::Status()>& write);
  void Finish(Finished finished);
  void FailTask(const TaskAttempt& attempt, const absl::Status& error);
  void FailWaiting(TaskId task, const absl::Status& error);
  // What became of the task cannot be kept, now or later: for this process it has failed.
  void Lose(TaskId task, const absl::Status& error);
  // Callers that wait for what the disk does not take are told so.
  void LetGoOfStuck();
  absl::Status CheckStorage();  // OK, or what callers are told; tries the disk where it was in trouble
  // The service has no more to do with the task.
  void Forget(TaskId task, const std::string& outcome);
  void EnqueueAgain(LiveTask& task);
  // The store did not take what became of the task; one that was cancelled is over with that.
  void ForgetIfCancelled(TaskId task);
  // The task has ended in the store: watchers are told, and the log where it failed.
  void TellEnded(TaskId task, const std::string& outcome, const absl::Status& error = absl::OkStatus());
  void LogFailure(const LiveTask& task, const std::string& outcome, const absl::Status& error) const;
  void GiveUp(const std::vector<TaskId>& tasks, const absl::Status& reason, bool blame);
  void TellQueuePositions();
  void KeepHouse();

  const DurableServiceOptions options_;
  SystemClock clock_;
  DiskResultFiles files_;
  const absl::Time started_;
  std::string owner_;  // of workers: names the data folder, also where others have folders of that path
  std::unique_ptr<JobStore> store_;
  std::vector<ServedModel> models_;
  std::vector<GroupRunnerOptions> groups_;  // group i has id i + 1
  ServiceMetrics metrics_;
  std::unique_ptr<TaskPool> pool_;

  // Recursive, because a listener may end its own watch.
  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  // Guarded by mutex_.
  RequestScheduler scheduler_;
  LiveJobs live_;
  QueueTrace trace_;
  uint64_t generation_ = 0;  // of what there is to plan
  std::map<GroupId, uint64_t> planned_;
  // What the pool still has to keep or to tell the store: whether its worker has let go of it.
  std::map<TaskId, bool> unstored_;
  struct LostTask {
    absl::Status error;
    absl::Time ended;
  };
  std::map<TaskId, LostTask> lost_;
  bool let_go_ = false;  // whoever watches: the patience of the drain is over
  bool stopping_ = false;

  std::atomic<bool> draining_ = false;         // changed under mutex_
  std::atomic<int64_t> writes_under_way_ = 0;  // of Persist, those that are tried again and again included
  std::vector<std::unique_ptr<GroupRunner>> runners_;
  std::thread housekeeper_;
};

}  // namespace tessera
