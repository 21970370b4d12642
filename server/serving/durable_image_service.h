// The service over real models: jobs are kept by the job store, planned by the scheduler and run by worker groups.
//
// A submission is durable before it is answered; what was queued or running when the process ended is queued again when
// the next one starts. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
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
#include "base/clock.h"
#include "base/log_line.h"
#include "base/task_pool.h"
#include "server/api/image_service.h"
#include "server/jobs/disk_result_store.h"
#include "server/jobs/failpoint.h"
#include "server/jobs/job_store.h"
#include "server/scheduling/request_scheduler.h"
#include "server/serving/group_runner.h"
#include "server/serving/live_jobs.h"
#include "server/serving/service_metrics.h"
#include "server/trace/queue_trace.h"

namespace tessera {

// count equal replicas.
struct ServedGroupOptions {
  std::string name;  // of the model, as requests call it
  // Where the folder of the model is now, as `load` has it; null: where `load` says. Asked whenever it is looked for.
  std::function<absl::StatusOr<std::string>()> find_model = nullptr;
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

// Of what is accepted; what was accepted before is made whatever they become.
struct ServiceLimits {
  int64_t max_queued_jobs = 10000;
  absl::Duration max_expected_wait = absl::ZeroDuration();  // until a new job would start; zero: no bound
  absl::Duration max_job_time = absl::ZeroDuration();       // predicted, of one job on one group; zero: no bound

  bool operator==(const ServiceLimits&) const = default;
};

struct DurableServiceOptions {
  std::string data_folder;  // made if need be
  std::vector<ServedGroupOptions> groups;
  CertifyPolicy certify = CertifyPolicy::kAuto;
  bool may_start_without_models = false;  // where none of them can be read at present
  bool ready_when_durable = false;        // ready while jobs can be accepted, warm groups or not
  absl::Duration retention = absl::Hours(24);
  int64_t retention_bytes = 0;  // of the images of ended jobs; the oldest jobs go first; 0: no bound
  ServiceLimits limits;
  absl::Duration first_back_off = absl::Seconds(1);  // before a group that died starts again; it doubles
  ProgressBounds progress;
  std::string vfs;                 // SQLite's name of the job store's file layer; empty: the system's own
  ResultStore* results = nullptr;  // in place of files in data_folder; outlives the service
  absl::Duration disk_patience = absl::Seconds(5);  // with a disk that takes nothing, before those who wait are told
  std::function<HostMemory()> host_memory;          // for groups on the CPU; null: not known, nothing is refused for it
  AtPoint at_point;                                 // of the job store and of the groups' records; may be empty
  TraceFile* trace = nullptr;                       // outlives the service
  bool openai_names = true;                         // the first model answers to the names of OpenAI's image models
  EventLog log;                                     // what operators should know
};

class DurableImageService final : public ImageService, private GroupOwner {
 public:
  // Describes every model, opens the job store, and lets the groups start on threads of their own. A model that cannot
  // be read, or a layout that cannot be, is tried again later, as long as there is another one. Errors: there is none,
  // a data folder that cannot be used or is another process's.
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

  // For jobs from now on.
  void SetLimits(const ServiceLimits& limits);

  // Serves these groups from now on; returns before it does. Those that are served already go on, and try at once where
  // they could not start. Others finish what runs in them and end; what waits for a model that is gone fails.
  void SetGroups(const std::vector<ServedGroupOptions>& groups);

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
    std::shared_ptr<const ServedModel> model;
  };

  // One replica of a group that was installed. It stays here when it has ended.
  struct Replica {
    ServedGroupOptions options;
    GroupDescription description;
    std::shared_ptr<const ServedModel> model;
    bool refused = false;  // the scheduler does not know it
    bool leaving = false;  // it starts nothing more
    bool ended = false;
  };
  // What is needed to start a group.
  struct Described {
    ServedGroupOptions options;  // with the model's folder
    ModelDescription model;
    Layout layout;
  };
  // Groups that cannot be installed at present.
  struct Unreadable {
    ServedGroupOptions options;
    size_t number = 0;  // of the first replica, in its name
    absl::Status reason;
    absl::Duration pause, next;  // of the steady clock
  };
  struct KeptTask {
    QueuedTask task;
    std::shared_ptr<const JobRequest> request;
  };

  explicit DurableImageService(const DurableServiceOptions& options);
  absl::Status Open();

  // GroupOwner.
  void OnReady(GroupId group, const std::optional<DeviceRoom>& room) override;
  void OnDied(GroupId group, const absl::Status& reason, bool blameless) override;
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

  // served_groups.cc
  // Of the groups of the options, before there is anything else.
  absl::Status AddGroups();
  // Asks the model's files, with a worker of its own.
  absl::StatusOr<Described> DescribeGroup(const ServedGroupOptions& group);
  absl::StatusOr<ModelDescription> DescribeModel(const std::string& folder);
  // With the lock, as the next ones.
  void Install(const Described& group, size_t number, int64_t replicas);  // of all groups, which share the threads
  void ShowReadable(const Described& group);
  void ShowUnreadable(const Unreadable& group);
  void LogRefused(const std::string& model, size_t number, const absl::Status& reason) const;
  void StartRunners();
  void PutModel(ServedModel model);

  // group_changes.cc
  // On a thread of its own: brings the groups to what is wanted, and tries again what could not be read.
  void WatchGroups();
  void TakeGroups(const std::vector<ServedGroupOptions>& groups);  // with the lock, as the next one
  std::vector<TaskId> TakeUnserved();
  void EnqueueKept(const std::string& model);
  void TryUnreadable();
  void EndLeaving();
  void FailUnserved(const std::vector<TaskId>& tasks);
  std::string RecordsFolder() const { return options_.data_folder + "/workers"; }
  // What workers of servers before have left that were killed with them.
  void RemoveLeftovers() const;
  // Shares the machine's memory among the groups that are on its CPU.
  void ShareMemory();
  // The ranks of all groups that are on one of this group's devices: the most of them.
  int64_t RanksBeside(const GroupRunnerOptions& group) const;
  void Enqueue(const QueuedTask& queued, uint64_t ticket);
  static absl::Status Draining();   // what callers are told who come too late
  static absl::Status NotServed();  // of a job that waits for a model that is gone
  absl::StatusOr<Submitted> Accept(const Caller& caller, const JobRequest& request,
                                   const std::optional<IdempotencyKey>& idempotency);
  // Whether a new job may be kept: the scheduler's ticket for it.
  absl::StatusOr<uint64_t> Admit(const Caller& caller, const JobRequest& request);
  // INVALID_ARGUMENT where it would take a group longer than a job may.
  absl::Status CheckJobTime(const JobRequest& request, const ServedModel& model) const;
  absl::StatusOr<Submitted> Keep(const Caller& caller, const JobRequest& request,
                                 const std::optional<IdempotencyKey>& idempotency, uint64_t ticket);
  void Changed() {
    ++generation_;
    changed_.notify_all();
  }
  std::shared_ptr<const ServedModel> FindServed(const std::string& id) const;  // with the lock
  bool IsReady(const ServedModel& model) const;                                // a group of it is
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
  // With the lock, as the next one. Those that the scheduler ended because their deadline had passed while they ran.
  void FailOverdue();
  // Groups that work for nobody and would do so for longer than their workers take to start are started again.
  void ReplaceAbandoned();
  void KeepHouse();

  const DurableServiceOptions options_;
  SystemClock clock_;
  DiskResultStore files_;
  const absl::Time started_;
  std::string owner_;  // of workers: names the data folder, also where others have folders of that path
  std::unique_ptr<JobStore> store_;
  ServiceMetrics metrics_;
  std::unique_ptr<TaskPool> pool_;

  // Recursive, because a listener may end its own watch.
  std::recursive_mutex mutex_;
  std::condition_variable_any changed_;
  // Guarded by mutex_.
  std::vector<std::shared_ptr<const ServedModel>> models_;
  // Group i has id i + 1; nothing is ever taken out of these three.
  std::deque<GroupRunnerOptions> groups_;
  std::deque<Replica> replicas_;
  std::deque<std::unique_ptr<GroupRunner>> runners_;
  std::vector<Unreadable> unreadable_;
  std::multimap<std::string, KeptTask> kept_tasks_;  // by model, until it can be read
  std::optional<std::vector<ServedGroupOptions>> wanted_groups_;
  std::shared_ptr<WorkerGroup> describing_;
  size_t next_number_ = 0;
  ServiceLimits limits_;
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
  std::thread housekeeper_, group_watch_;
};

}  // namespace tessera
