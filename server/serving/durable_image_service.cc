#include "server/serving/durable_image_service.h"

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/kept_secret.h"
#include "base/files/private_files.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "server/adapters/adapter_check.h"
#include "server/api/job.h"
#include "server/backup/restore.h"
#include "server/jobs/data_folder.h"
#include "server/jobs/postgres_job_store.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/pictures/uploaded_pictures.h"
#include "server/serving/group_record.h"
#include "server/serving/storage_error.h"
#include "server/serving/watched_job.h"
#include "server/workers/worker_process.h"

namespace tessera::server {
namespace {

using Lock = ServiceMonitor::Lock;

// A command to the workers costs some tenths of a millisecond on busy processors. A command that arrives meanwhile
// waits for the steps of two plans.
constexpr absl::Duration kStepsTogether = absl::Milliseconds(60);
// A step this short delays no task much, so its batch may be large.
constexpr absl::Duration kShortStep = absl::Milliseconds(250);
constexpr absl::Duration kStoreTimeout = absl::Seconds(2);
// How long adapters that no job needs are kept after their last use.
constexpr absl::Duration kOwnAdapters = absl::Minutes(10);
constexpr absl::Duration kSharedAdapters = absl::Hours(24 * 30);
// Pictures that no job needs are kept this long after their last use, so that a caller may use them again.
constexpr absl::Duration kPictures = absl::Hours(1);
constexpr absl::Duration kDrainTick = absl::Milliseconds(250);

// Returns the owner text for a data folder, which must exist.
std::string OwnerOf(const std::string& data_folder) {
  struct stat about = {};
  stat(data_folder.c_str(), &about);
  return absl::BytesToHexString(base::Sha256Of(absl::StrCat(about.st_dev, " ", about.st_ino))).substr(0, 8);
}

// Logs the first read that fails. After an image's transfer has begun, stopping is the only way to report an error to
// the client.
class ReportedImage final : public base::ByteSource {
 public:
  ReportedImage(std::string image, base::SharedBytes bytes, base::EventLog log)
      : image_(std::move(image)), bytes_(std::move(bytes)), log_(std::move(log)) {}

  uint64_t size() const override { return bytes_->size(); }
  absl::StatusOr<std::string> Read(uint64_t offset, size_t count) const override {
    absl::StatusOr<std::string> piece = bytes_->Read(offset, count);
    if (!piece.ok() && log_ && !reported_.exchange(true)) {
      log_({base::LogLevel::kWarning,
            absl::StrCat("image ", image_, " was not sent completely: ", std::string(piece.status().message()))});
    }
    return piece;
  }

 private:
  const std::string image_;
  const base::SharedBytes bytes_;
  const base::EventLog log_;
  mutable std::atomic<bool> reported_ = false;
};

ImageFormat FormatOf(const std::string& file) {
  if (!file.empty() && file[0] == '\xFF') return ImageFormat::kJpeg;
  return !file.empty() && file[0] == 'R' ? ImageFormat::kWebp : ImageFormat::kPng;
}

// Removes the socket folders of earlier servers' workers that were killed together with their server.
void RemoveLeftovers(const std::string& records, const std::string& owner) {
  std::map<std::string, WorkerIdentity> recorded;  // by socket
  for (const WorkerIdentity& worker : RecordedWorkers(records)) recorded[worker.socket] = worker;
  RemoveDesertedFolders(owner, [&](const std::string& socket) {
    const auto worker = recorded.find(socket);
    return worker != recorded.end() && IsWorker(worker->second, WorkerProgram());
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<DurableImageService>> DurableImageService::Start(const DurableServiceOptions& options) {
  std::unique_ptr<DurableImageService> service(new DurableImageService(options));
  RETURN_IF_ERROR(service->Open());
  return service;
}

DurableImageService::DurableImageService(const DurableServiceOptions& options)
    : options_(options),
      started_(base::SystemClock().Now()),
      trace_(options.trace, options.spans),
      monitor_({.steps_together = kStepsTogether,
                .short_step = kShortStep,
                .max_waiting = options.limits.max_queued_jobs,
                .max_expected_wait = options.limits.max_expected_wait}),
      storage_{.clock = {},
               .results = DiskResultStore(options.data_folder + "/" + kImagesFolder, options.highest_result_descriptor),
               .jobs = nullptr,
               .contents = nullptr,
               .adapters = nullptr,
               .pictures = nullptr} {}

DurableImageService::~DurableImageService() {
  monitor_.Stop();
  wanted_.reset();
  if (fleet_ != nullptr) fleet_->Stop();
  maintenance_.reset();
  shared_queue_.reset();
  outcomes_.reset();  // stores decoded pictures
  // A folder that no server uses has its images in files. Images that cannot be written now wait for the next server.
  constexpr int64_t kAtATime = 64;
  while (storage_.jobs != nullptr && storage_.jobs->can_write()) {
    const absl::StatusOr<int64_t> settled = storage_.jobs->SettleImages(kAtATime);
    if (!settled.ok() || *settled < kAtATime) break;
  }
}

absl::Status DurableImageService::Open() {
  if (options_.key_metrics) metrics_.NameKeys({"anonymous"});
  RETURN_IF_ERROR(base::MakePrivateFolder(options_.data_folder));
  RETURN_IF_ERROR(CheckNoRestore(options_.data_folder));
  if (base::ReadersOfDataFolder(options_.data_folder) != base::Readers::kOwner) {
    options_.log(
        {base::LogLevel::kWarning,
         "other users of this machine can read prompts and pictures in the data folder; run `tessera doctor` to "
         "see how to restrict access"});
  }
  std::string own_folder = options_.data_folder;
  if (options_.shared_queue.has_value()) {
    ASSIGN_OR_RETURN(own_folder_, ServerFolder::Take(options_.data_folder));
    own_folder = own_folder_.path();
  }
  const std::string owner = OwnerOf(own_folder);
  fleet_ = std::make_unique<GroupFleet>(monitor_, models_, options_, own_folder, owner);
  wanted_ = std::make_unique<WantedGroups>(monitor_, models_, *fleet_, options_, owner);
  RETURN_IF_ERROR(wanted_->Install());
  RETURN_IF_ERROR(OpenContents());
  RETURN_IF_ERROR(OpenStore());
  RemoveLeftovers(own_folder + "/workers", owner);
  context_ = std::make_unique<const ServingContext>(ServingContext{.monitor = monitor_,
                                                                   .store = *storage_.jobs,
                                                                   .hub = hub_,
                                                                   .models = models_,
                                                                   .groups = *fleet_,
                                                                   .contents = *storage_.contents,
                                                                   .adapters = *storage_.adapters,
                                                                   .pictures = *storage_.pictures,
                                                                   .metrics = metrics_,
                                                                   .trace = trace_,
                                                                   .log = options_.log,
                                                                   .picture_key = PictureKeys()});
  outcomes_ = std::make_unique<JobOutcomes>(*context_);
  jobs_ = std::make_unique<JobLifecycle>(*context_, *outcomes_);
  admission_ = std::make_unique<JobAdmission>(*context_, *jobs_, *outcomes_, options_.limits);
  maintenance_ = std::make_unique<Maintenance>(*context_, *jobs_, *outcomes_, options_.disk_timeout);
  RETURN_IF_ERROR(jobs_->Recover());
  if (storage_.jobs->is_shared()) shared_queue_ = std::make_unique<SharedQueue>(*context_, *jobs_, *outcomes_);
  wanted_->Start(*jobs_, *outcomes_);
  maintenance_->Start();
  return absl::OkStatus();
}

std::function<std::string(const std::string&)> DurableImageService::PictureKeys() const {
  if (options_.picture_key != nullptr) return [key = options_.picture_key](const std::string&) { return key(); };
  return [path = absl::StrCat(options_.data_folder, "/", kPictureSecret)](const std::string& tenant) {
    return base::Sha256Of(absl::StrCat(base::KeptSecret(path), tenant));
  };
}

absl::Status DurableImageService::OpenStore() {
  if (options_.open_store) {
    ASSIGN_OR_RETURN(storage_.jobs, options_.open_store());
    return absl::OkStatus();
  }
  const auto on_storage = [log = options_.log](const StorageTrouble& trouble) { log(StorageLogLine(trouble)); };
  ResultStore* const files = options_.results == nullptr ? &storage_.results : options_.results;
  if (options_.shared_queue.has_value()) {
    ASSIGN_OR_RETURN(storage_.jobs,
                     PostgresJobStore::Open({.address = options_.shared_queue->address,
                                             .name = own_folder_.path().substr(own_folder_.path().rfind('/') + 1),
                                             .files = files,
                                             .clock = &storage_.clock,
                                             .lease = options_.shared_queue->lease,
                                             .retention = options_.retention,
                                             .retention_bytes = options_.retention_bytes,
                                             .at_point = options_.at_point,
                                             .on_storage = on_storage}));
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(storage_.jobs,
                   SqliteJobStore::Open({.path = options_.data_folder + "/" + kJobsFile,
                                         .files = files,
                                         .clock = &storage_.clock,
                                         .vfs = options_.vfs,
                                         .retention = options_.retention,
                                         .retention_bytes = options_.retention_bytes,
                                         .most_committed_bytes = static_cast<uint64_t>(options_.committed_image_bytes),
                                         .timeout = kStoreTimeout,
                                         .at_point = options_.at_point,
                                         .on_storage = on_storage}));
  return absl::OkStatus();
}

absl::Status DurableImageService::OpenContents() {
  // In a shared data folder, other servers' jobs may need adapters that this server does not know of.
  ASSIGN_OR_RETURN(storage_.contents,
                   ContentStore::Open({.folder = options_.data_folder + "/" + kContentsFolder,
                                       .own_folder = options_.data_folder + "/" + kAdaptersFolder,
                                       .own_suffix = ".safetensors",
                                       .is_shared = options_.shared_queue.has_value(),
                                       .retention = kPictures,
                                       .own_retention = options_.shared_queue ? kSharedAdapters : kOwnAdapters,
                                       .most_bytes_of_key = options_.picture_storage_bytes_per_key,
                                       .most_bytes = options_.picture_storage_bytes,
                                       .log = options_.log}));
  UploadedPicturesOptions pictures = {.folder = options_.data_folder + "/" + kContentsFolder,
                                      .file_retention = options_.uploaded_file_time,
                                      .log = options_.log};
  if (!options_.picture_decoder.empty()) pictures.decoder.executable = options_.picture_decoder;
  storage_.pictures = std::make_unique<UploadedPictures>(std::move(pictures), *storage_.contents);
  ASSIGN_OR_RETURN(
      storage_.adapters,
      ServedAdapters::Open(
          {.folder = options_.adapter_folder,
           .check = [this](const std::string& model, const std::string& path,
                           const std::string& name) { return CheckAdapterFits(path, name, DescriptionOf(model)); },
           .log = options_.log},
          *storage_.contents));
  storage_.adapters->Scan(ModelIds());
  return absl::OkStatus();
}

std::vector<std::string> DurableImageService::ModelIds() {
  const Lock lock = monitor_.Acquire();
  std::vector<std::string> ids;
  for (const ServedModels::Model& model : models_.all()) ids.push_back(model->id);
  return ids;
}

control::ModelDescription DurableImageService::DescriptionOf(const std::string& model) {
  const Lock lock = monitor_.Acquire();
  const ServedModels::Model found = models_.Find(model);
  return found == nullptr ? control::ModelDescription() : *found->description;
}

absl::StatusOr<LoadedAdapter> DurableImageService::LoadAdapter(const std::string& name) {
  return storage_.adapters->Load(name, ModelIds());
}

absl::StatusOr<StoredPicture> DurableImageService::PutPicture(const Caller& caller, absl::string_view file) {
  return storage_.pictures->Put(ContentOwner::Key(caller.tenant), file);
}

absl::StatusOr<std::string> DurableImageService::ReadPicture(const Caller& caller, const control::PictureUse& picture) {
  return storage_.pictures->ReadPicture(ContentOwner::Key(caller.tenant), picture);
}

absl::StatusOr<UploadedFile> DurableImageService::PutFile(const Caller& caller, absl::string_view file) {
  return storage_.pictures->PutFile(ContentOwner::Key(caller.tenant), file);
}

absl::StatusOr<UploadedFile> DurableImageService::FindFile(const Caller& caller, absl::string_view id) {
  return storage_.pictures->FindFile(ContentOwner::Key(caller.tenant), id);
}

absl::StatusOr<std::vector<UploadedFile>> DurableImageService::ListFiles(const Caller& caller) {
  return storage_.pictures->ListFiles(ContentOwner::Key(caller.tenant));
}

absl::Status DurableImageService::DeleteFile(const Caller& caller, absl::string_view id) {
  return storage_.pictures->DeleteFile(ContentOwner::Key(caller.tenant), id);
}

absl::Status DurableImageService::ErrorForCaller(const absl::Status& status) const {
  return StorageErrorForCaller(status, storage_.jobs->trouble().state);
}

absl::StatusOr<Job> DurableImageService::Get(const Caller& caller, absl::string_view job) {
  const absl::StatusOr<JobRecord> record = storage_.jobs->Get(caller.tenant, std::string(job));
  if (!record.ok()) return ErrorForCaller(record.status());
  const Lock lock = monitor_.Acquire();
  return JobOf(*context_, lock, *record);
}

absl::StatusOr<JobPage> DurableImageService::List(const Caller& caller, const ListOptions& options) {
  const absl::StatusOr<JobRecordPage> records =
      storage_.jobs->List(caller.tenant, options.limit, options.after, options.state);
  if (!records.ok()) return ErrorForCaller(records.status());
  JobPage page = {.next = records->next};
  const Lock lock = monitor_.Acquire();
  for (const JobRecord& record : records->jobs) {
    Job job = JobOf(*context_, lock, record);
    // A job whose result could not be stored may be in another state here than in the store.
    if (!options.state.has_value() || job.state == *options.state) page.jobs.push_back(std::move(job));
  }
  return page;
}

absl::StatusOr<std::unique_ptr<JobWatch>> DurableImageService::Watch(const Caller& caller, absl::string_view job,
                                                                     WatchedEvents events, Listener listener) {
  return WatchJob(*context_, caller.tenant, std::string(job), events, std::move(listener));
}

absl::StatusOr<ImageFile> DurableImageService::OpenImage(const Caller& caller, absl::string_view image) {
  absl::StatusOr<base::SharedBytes> file = storage_.jobs->OpenImage(caller.tenant, std::string(image));
  if (!file.ok()) return ErrorForCaller(file.status());
  const absl::StatusOr<std::string> begin = (*file)->Read(0, 1);
  if (!begin.ok()) return ErrorForCaller(begin.status());
  return ImageFile{.format = FormatOf(*begin),
                   .bytes = std::make_shared<ReportedImage>(std::string(image), *std::move(file), options_.log)};
}

std::vector<ServedModel> DurableImageService::ListModels() {
  const Lock lock = monitor_.Acquire();
  std::vector<ServedModel> models;
  for (const ServedModels::Model& model : models_.all()) {
    models.push_back(*model);
    models.back().answers_to_openai_names = options_.openai_names && models.size() == 1;
    models.back().progress = fleet_->ProgressOf(lock, model->id);
    models.back().adapters = storage_.adapters->Of(model->id);
  }
  return models;
}

ServerInfo DurableImageService::Info() {
  ServerInfo info = {.version = TESSERA_VERSION, .started = started_};
  if (options_.hosts != nullptr) info.nodes = options_.hosts->Infos();
  const Lock lock = monitor_.Acquire();
  RequestScheduler& scheduler = monitor_.scheduler(lock);
  info.groups = fleet_->Infos(lock);
  std::ranges::move(wanted_->UnreadableInfos(lock), std::back_inserter(info.groups));
  const absl::Time now = storage_.jobs->Now();
  for (const auto& [model, cost] : scheduler.capacity().models()) {
    const absl::Time oldest = scheduler.tasks().OldestWaiting(model).value_or(now);
    const ModelQueue queue = {.model = model,
                              .queued_jobs = scheduler.tasks().Waiting(model).size(),
                              .running_jobs = scheduler.groups().ResidentOf(model) +
                                              outcomes_->ReleasedOf(lock, model) +
                                              scheduler.admission().Elsewhere(model),
                              .device_seconds = scheduler.admission().QueuedDeviceSeconds(model),
                              .oldest_wait = now - std::min(now, oldest)};
    info.queued_jobs += queue.queued_jobs;
    info.running_jobs += queue.running_jobs;
    info.queued_device_seconds += queue.device_seconds;
    info.oldest_wait = std::max(info.oldest_wait, queue.oldest_wait);
    info.queues.push_back(queue);
  }
  info.unstored_images = static_cast<int64_t>(outcomes_->unstored(lock));
  info.result_bytes = storage_.jobs->result_bytes();
  info.storage = storage_.jobs->trouble().state;
  info.draining = monitor_.draining();
  info.images_done = metrics_.images("done");
  info.images_failed = metrics_.images("failed") + metrics_.images("quarantined");
  return info;
}

absl::Status DurableImageService::Ready() {
  if (monitor_.draining()) return absl::UnavailableError("the server is stopping");
  RETURN_IF_ERROR(StorageErrorForCaller(storage_.jobs->trouble().state));
  if (options_.ready_when_durable) return absl::OkStatus();
  const Lock lock = monitor_.Acquire();
  for (const ServedModels::Model& model : models_.all()) {
    if (fleet_->ProgressOf(lock, model->id).is_ready()) continue;
    return absl::UnavailableError(absl::StrCat("no group of model ", model->id, " is ready"));
  }
  return absl::OkStatus();
}

void DurableImageService::SetShares(const std::map<std::string, double>& shares) {
  const Lock lock = monitor_.Acquire();
  monitor_.scheduler(lock).keys().SetWeights(shares);
  if (!options_.key_metrics) return;
  std::set<std::string> names = {"anonymous"};
  for (const auto& [name, share] : shares) names.insert(name);
  metrics_.NameKeys(names);
}

absl::StatusOr<std::vector<DayUsage>> DurableImageService::Usage(const UsageQuery& query) {
  absl::StatusOr<std::vector<DayUsage>> usage = storage_.jobs->Usage(query);
  if (!usage.ok() && !absl::IsInvalidArgument(usage.status())) return ErrorForCaller(usage.status());
  return usage;
}

void DurableImageService::TryGroups() {
  const ServiceMonitor::Lock lock = monitor_.Acquire();
  fleet_->TryAll(lock);
}

void DurableImageService::Drain(absl::Duration timeout) {
  {
    Lock lock = monitor_.Acquire();
    fleet_->DrainAll(lock);
    monitor_.StartDraining(lock);
    const absl::Duration end = base::SteadyNow() + timeout;
    while (monitor_.scheduler(lock).groups().resident() > 0 || outcomes_->unstored(lock) > 0) {
      const absl::Duration left = end - base::SteadyNow();
      // The next process makes images again that the disk does not take, no matter how long this one waits.
      if (left <= absl::ZeroDuration() || IsStorageStuck(storage_.jobs->trouble(), options_.disk_timeout)) break;
      monitor_.WaitForChange(lock, std::min(left, kDrainTick));
    }
  }
  hub_.ReleaseAll(DrainingError());
}

}  // namespace tessera::server
