#include "server/serving/durable_image_service.h"

#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/private_files.h"
#include "base/sha256.h"
#include "base/steady_time.h"
#include "base/task_pool.h"
#include "server/api/generation_request.h"
#include "server/api/unused_parameters.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/scheduling/cost_model.h"
#include "server/serving/group_record.h"
#include "server/serving/live_jobs.h"
#include "server/serving/service_metrics.h"
#include "server/serving/storage_error.h"
#include "server/workers/last_output.h"
#include "server/workers/worker_process.h"

namespace tessera {
namespace {

constexpr int kPoolThreads = 4;
constexpr absl::Duration kStorePatience = absl::Seconds(2);
constexpr absl::Duration kProbePatience = absl::Seconds(60);

// Of a folder that exists.
std::string OwnerOf(const std::string& data_folder) {
  struct stat about = {};
  stat(data_folder.c_str(), &about);
  return absl::BytesToHexString(Sha256Of(absl::StrCat(about.st_dev, " ", about.st_ino))).substr(0, 8);
}

ImageFormat FormatOf(const std::string& file) {
  if (!file.empty() && file[0] == '\xFF') return ImageFormat::kJpeg;
  return !file.empty() && file[0] == 'R' ? ImageFormat::kWebp : ImageFormat::kPng;
}

}  // namespace

class DurableImageService::Watching final : public JobWatch {
 public:
  Watching(DurableImageService& service, std::string job, std::shared_ptr<Subscription> subscription)
      : service_(service), job_(std::move(job)), subscription_(std::move(subscription)) {}
  ~Watching() override {
    const std::lock_guard lock(service_.mutex_);
    service_.live_.Unsubscribe(job_, subscription_);
  }

 private:
  DurableImageService& service_;
  const std::string job_;
  const std::shared_ptr<Subscription> subscription_;
};

absl::StatusOr<std::unique_ptr<DurableImageService>> DurableImageService::Start(const DurableServiceOptions& options) {
  std::unique_ptr<DurableImageService> service(new DurableImageService(options));
  if (absl::Status opened = service->Open(); !opened.ok()) return opened;
  return service;
}

DurableImageService::DurableImageService(const DurableServiceOptions& options)
    : options_(options),
      files_(options.data_folder + "/images"),
      started_(clock_.Now()),
      limits_(options.limits),
      scheduler_(
          {.max_waiting = options.limits.max_queued_jobs, .max_expected_wait = options.limits.max_expected_wait}),
      trace_(options.trace) {}

DurableImageService::~DurableImageService() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    if (describing_ != nullptr) describing_->Kill();
    changed_.notify_all();
  }
  if (group_watch_.joinable()) group_watch_.join();
  for (const std::unique_ptr<GroupRunner>& runner : runners_) runner->Stop();
  if (housekeeper_.joinable()) housekeeper_.join();
  pool_.reset();  // finishes what is decoded
}

absl::Status DurableImageService::Open() {
  if (absl::Status made = MakePrivateFolder(options_.data_folder); !made.ok()) return made;
  if (ReadersOfDataFolder(options_.data_folder) != Readers::kOwner) {
    options_.log({LogLevel::kWarning,
                  "other users of this machine can read prompts and pictures in the data folder; `tessera doctor` says "
                  "how to end that"});
  }
  owner_ = OwnerOf(options_.data_folder);
  if (absl::Status added = AddGroups(); !added.ok()) return added;
  absl::StatusOr<std::unique_ptr<JobStore>> store = SqliteJobStore::Open(
      {.path = options_.data_folder + "/jobs.sqlite",
       .files = options_.results == nullptr ? &files_ : options_.results,
       .clock = &clock_,
       .vfs = options_.vfs,
       .retention = options_.retention,
       .retention_bytes = options_.retention_bytes,
       .patience = kStorePatience,
       .at_point = options_.at_point,
       .on_storage = [log = options_.log](const StorageTrouble& trouble) { log(StorageLogLine(trouble)); }});
  if (!store.ok()) return store.status();
  store_ = *std::move(store);
  RemoveLeftovers();
  std::vector<std::pair<uint64_t, absl::Status>>
      orphans;  // of models that are no longer served or have too little room
  const absl::StatusOr<Recovery> recovery = store_->Recover([&](const QueuedTask& queued) {
    const JobRequest& request = *queued.request;
    const std::shared_ptr<const ServedModel> model = FindServed(request.model);
    if (model != nullptr && !model->unreadable.ok()) {
      auto kept = std::make_shared<const JobRequest>(request);
      kept_tasks_.emplace(model->id, KeptTask{queued, kept})->second.task.request = kept.get();
      return;
    }
    const absl::Status fits = model == nullptr
                                  ? NotServed()
                                  : scheduler_.CheckFits(ShapeOf(model->id, model->description, request.parameters));
    if (fits.ok()) {
      Enqueue(queued, /*ticket=*/0);
    } else {
      orphans.emplace_back(queued.id, fits);
      options_.log(
          {LogLevel::kWarning,
           absl::StrCat("image ", queued.index, " of job ", queued.job, " is given up: ", std::string(fits.message())),
           {{"job", queued.job}, {"image_index", queued.index}, {"tenant", queued.tenant}, {"model", request.model}}});
    }
  });
  if (!recovery.ok()) return recovery.status();
  for (const auto& [task, reason] : orphans) store_->FailQueued(task, reason).IgnoreError();
  options_.log(absl::StrCat("recovered ", recovery->queued, " queued images, of which ", recovery->given_back,
                            " were running; ", recovery->damaged, " were damaged"));
  pool_ = std::make_unique<TaskPool>(kPoolThreads);
  {
    const std::lock_guard lock(mutex_);
    StartRunners();
  }
  housekeeper_ = std::thread([this] { KeepHouse(); });
  group_watch_ = std::thread([this] { WatchGroups(); });
  return absl::OkStatus();
}

void DurableImageService::RemoveLeftovers() const {
  std::map<std::string, WorkerIdentity> recorded;  // by socket
  for (const WorkerIdentity& worker : RecordedWorkers(RecordsFolder())) recorded[worker.socket] = worker;
  RemoveDesertedFolders(owner_, [&](const std::string& socket) {
    const auto worker = recorded.find(socket);
    return worker != recorded.end() && IsWorker(worker->second, WorkerProgram());
  });
}

std::shared_ptr<const ServedModel> DurableImageService::FindServed(const std::string& id) const {
  const auto found = std::ranges::find_if(models_, [&](const auto& model) { return model->id == id; });
  return found == models_.end() ? nullptr : *found;
}

void DurableImageService::Enqueue(const QueuedTask& queued, uint64_t ticket) {
  const JobRequest& request = *queued.request;
  const std::shared_ptr<const ServedModel> model = FindServed(request.model);
  if (model == nullptr || !model->unreadable.ok()) {  // since the job was admitted
    scheduler_.Release(ticket);
    pool_->Post([this, task = queued.id] { FailWaiting(task, NotServed()); });
    return;
  }
  const SchedulerTask plan = {.id = queued.id,
                              .key = queued.tenant,
                              .shape = ShapeOf(request.model, model->description, request.parameters),
                              .steps = request.parameters.steps,
                              .priority = request.priority,
                              .enqueued = queued.created,
                              .deadline = queued.deadline,
                              .alone = queued.blame.alone};
  trace_.OnQueued(live_.Add(queued, plan).image, queued.created);
  scheduler_.Enqueue(plan, Now(), ticket).IgnoreError();  // ids are never used twice
}

std::optional<absl::Duration> DurableImageService::ExpectedWait(TaskId task) const {
  const std::optional<absl::Duration> wait = scheduler_.ExpectedWait(task);
  return wait == absl::InfiniteDuration() ? std::nullopt : wait;
}

Job DurableImageService::JobOf(const JobRecord& stored) {
  const JobRecord record = lost_.empty() ? stored : WithLost(stored);
  Job job = {.id = record.id,
             .request = record.request,
             .state = StateOf(record),
             .created = record.created,
             .expires = record.expires,
             .steps_done = live_.StepsDone(record.id),
             .steps_total = record.request.parameters.steps * static_cast<int32_t>(record.tasks.size()),
             .error = ErrorOf(record)};
  if (const auto model = FindServed(job.request.model); model != nullptr) {
    job.warnings = DropUnusedParameters(job.request.parameters, model->description);
  }
  for (const TaskRecord& task : record.tasks) {
    if (task.started.has_value()) job.started = std::min(job.started.value_or(*task.started), *task.started);
    if (IsEnded(job.state) && task.ended.has_value()) {
      job.ended = std::max(job.ended.value_or(*task.ended), *task.ended);
    }
    if (const std::optional<int64_t> position = scheduler_.QueuePosition(task.id); position.has_value()) {
      if (!job.queue_position.has_value() || *position < *job.queue_position) {
        job.queue_position = position;
        job.expected_wait = ExpectedWait(task.id);
      }
    }
    if (const LiveTask* live = live_.Find(task.id); live != nullptr && live->attempt.has_value()) {
      const Layout layout = runners_[static_cast<size_t>(live->group - 1)]->layout();
      job.layout = LayoutText(layout);
      job.lossless = IsLossless(layout, record.request.parameters.steps);
    }
    if (!task.image.has_value()) continue;
    if (live_.Find(task.id) == nullptr) job.steps_done += record.request.parameters.steps;
    const ImageOrigin& origin = task.image->origin;
    job.images.push_back({.index = task.index,
                          .id = task.image->id,
                          .seed = record.request.parameters.seed + static_cast<uint64_t>(task.index),
                          .width = origin.width,
                          .height = origin.height,
                          .format = origin.format,
                          .bytes = task.image->bytes});
    job.layout = origin.layout;
    job.lossless = job.lossless && origin.lossless;
    for (const std::string& warning : origin.warnings) {
      if (std::ranges::find(job.warnings, warning) == job.warnings.end()) job.warnings.push_back(warning);
    }
  }
  if (const auto model = FindServed(record.request.model); model != nullptr) {
    std::vector<std::string> warnings = SizeWarnings(record.request.parameters, model->description);
    job.warnings.insert(job.warnings.begin(), warnings.begin(), warnings.end());
  }
  if (job.state != JobState::kQueued) job.queue_position.reset();
  return job;
}

absl::StatusOr<Job> DurableImageService::Get(const Caller& caller, absl::string_view job) {
  const absl::StatusOr<JobRecord> record = store_->Get(caller.tenant, std::string(job));
  if (!record.ok()) return StorageErrorForCaller(record.status());
  const std::lock_guard lock(mutex_);
  return JobOf(*record);
}

absl::StatusOr<JobPage> DurableImageService::List(const Caller& caller, const ListOptions& options) {
  const absl::StatusOr<JobRecordPage> records =
      store_->List(caller.tenant, options.limit, options.after, options.state);
  if (!records.ok()) return StorageErrorForCaller(records.status());
  JobPage page = {.next = records->next};
  const std::lock_guard lock(mutex_);
  for (const JobRecord& record : records->jobs) {
    Job job = JobOf(record);
    // One that could not be kept may be in another state than the store's.
    if (!options.state.has_value() || job.state == *options.state) page.jobs.push_back(std::move(job));
  }
  return page;
}

absl::StatusOr<Job> DurableImageService::Cancel(const Caller& caller, absl::string_view job) {
  const absl::StatusOr<JobRecord> record = store_->Cancel(caller.tenant, std::string(job));
  if (!record.ok()) return StorageErrorForCaller(record.status());
  const std::lock_guard lock(mutex_);
  for (const TaskRecord& task : record->tasks) {
    LiveTask* live = live_.Find(task.id);
    if (live == nullptr) continue;
    const bool cancelled = task.state == TaskState::kCancelled;
    if (cancelled && !std::exchange(live->cancelled, true)) metrics_.CountImage("cancelled");
    if (scheduler_.Cancel(task.id)) Forget(task.id, "cancelled");
  }
  Changed();
  Job cancelled = JobOf(*record);
  if (IsEnded(cancelled.state)) live_.TellEnd(record->id, cancelled);
  return cancelled;
}

absl::StatusOr<std::unique_ptr<JobWatch>> DurableImageService::Watch(const Caller& caller, absl::string_view job,
                                                                     Listener listener) {
  const std::lock_guard lock(mutex_);
  const absl::StatusOr<JobRecord> record = store_->Get(caller.tenant, std::string(job));
  if (!record.ok()) return StorageErrorForCaller(record.status());
  auto subscription = std::make_shared<Subscription>();
  subscription->listener = std::move(listener);
  auto watch = std::make_unique<Watching>(*this, record->id, subscription);
  const Job now = JobOf(*record);
  if (!IsEnded(now.state)) live_.Subscribe(record->id, subscription);
  const auto tell = [&](const JobEvent& event) {
    if (subscription->active) subscription->listener(event);
  };
  if (now.queue_position.has_value()) {
    tell(QueuedEvent{.position = *now.queue_position, .expected_wait = now.expected_wait});
  }
  if (now.started.has_value()) tell(StartedEvent{});
  for (const FinishedImage& image : now.images) {
    subscription->images.insert(image.index);
    tell(ImageEvent{image});
  }
  if (IsEnded(now.state)) {
    tell(EndedEvent{now});
  } else if (let_go_) {
    tell(LetGoEvent{Draining()});
  }
  return watch;
}

absl::StatusOr<ImageBytes> DurableImageService::ReadImage(const Caller& caller, absl::string_view image) {
  absl::StatusOr<std::string> file = store_->ReadImage(caller.tenant, std::string(image));
  if (!file.ok()) return StorageErrorForCaller(file.status());
  const ImageFormat format = FormatOf(*file);
  return ImageBytes{.format = format, .bytes = *std::move(file)};
}

std::vector<ServedModel> DurableImageService::ListModels() {
  const std::lock_guard lock(mutex_);
  std::vector<ServedModel> models;
  for (const auto& model : models_) {
    models.push_back(*model);
    models.back().answers_to_openai_names = options_.openai_names && models.size() == 1;
    models.back().ready = IsReady(*model);
  }
  return models;
}

bool DurableImageService::IsReady(const ServedModel& model) const {
  for (size_t i = 0; i < runners_.size(); ++i) {
    if (groups_[i].model_name == model.id && !replicas_[i].leaving && runners_[i]->is_ready()) return true;
  }
  return false;
}

ServerInfo DurableImageService::Info() {
  ServerInfo info = {.version = TESSERA_VERSION, .started = started_};
  const std::lock_guard lock(mutex_);
  for (size_t i = 0; i < runners_.size(); ++i) {
    if (!replicas_[i].ended) info.groups.push_back(runners_[i]->Info());
  }
  for (const Unreadable& group : unreadable_) {
    for (int64_t replica = 0; replica < group.options.count; ++replica) {
      info.groups.push_back({.name = absl::StrCat(group.options.name, "-", group.number + replica),
                             .model = group.options.name,
                             .dtype = group.options.load.dtype,
                             .devices = {group.options.load.device},
                             .state = GroupState::kRefused,
                             .reason = WithoutLastOutput(group.reason.message()),
                             .certificate = "not needed"});
    }
  }
  info.queued_jobs = scheduler_.waiting();
  info.running_jobs = RunningJobs();
  info.unstored_images = static_cast<int64_t>(unstored_.size());
  info.result_bytes = store_->result_bytes();
  info.storage = store_->trouble().state;
  info.queued_device_seconds = scheduler_.queued_device_seconds();
  info.draining = draining_;
  const absl::Time now = Now();
  info.oldest_wait = now - std::min(now, scheduler_.OldestWaiting().value_or(now));
  return info;
}

absl::Status DurableImageService::Ready() {
  if (draining_) return absl::UnavailableError("the server is ending");
  if (absl::Status storage = StorageErrorForCaller(store_->trouble().state); !storage.ok()) return storage;
  if (options_.ready_when_durable) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  for (const auto& model : models_) {
    if (!IsReady(*model)) return absl::UnavailableError(absl::StrCat("no group of model ", model->id, " is ready"));
  }
  return absl::OkStatus();
}

absl::Status DurableImageService::Probe() {
  const absl::Duration deadline = SteadyNow() + kProbePatience;
  std::vector<GroupRunner*> runners;
  {
    const std::lock_guard lock(mutex_);
    for (size_t i = 0; i < runners_.size(); ++i) {
      if (!replicas_[i].leaving) runners.push_back(runners_[i].get());
    }
  }
  for (GroupRunner* runner : runners) {
    if (absl::Status answered = runner->Probe(deadline - SteadyNow()); !answered.ok()) return answered;
  }
  return absl::OkStatus();
}

std::string DurableImageService::MetricsText() { return metrics_.Text(Info()); }

void DurableImageService::TellQueuePositions() {
  for (const std::string& job : live_.Watched()) {
    std::optional<int64_t> first;
    TaskId next = 0;
    for (const TaskId id : live_.TasksOf(job)) {
      const std::optional<int64_t> position = scheduler_.QueuePosition(id);
      if (position.has_value() && (!first.has_value() || *position < *first)) {
        first = position;
        next = id;
      }
    }
    if (first.has_value()) live_.Tell(job, QueuedEvent{.position = *first, .expected_wait = ExpectedWait(next)});
  }
}

void DurableImageService::SetShares(const std::map<std::string, double>& shares) {
  const std::lock_guard lock(mutex_);
  scheduler_.SetWeights(shares);
}

}  // namespace tessera
