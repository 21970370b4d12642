// DurableImageService is the ImageService over real models: a job store keeps jobs, the scheduler plans them and worker
// groups execute them.
//
// A submission is durable before it is answered. Tasks that were queued or running when the process ended are queued
// again when the next one starts. Thread-safe.
//
// This class only connects the parts and forwards calls. JobAdmission accepts jobs, JobLifecycle takes their tasks from
// the queue to their end, JobOutcomes stores results, WatchHub notifies watchers, GroupFleet has the groups,
// WantedGroups changes them, SharedQueue follows the other servers of the queue, and Maintenance does periodic work.
// They share one lock (ServiceMonitor).
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/time/clock.h"
#include "server/api/caller.h"
#include "server/api/image_service.h"
#include "server/jobs/disk_result_store.h"
#include "server/serving/group_fleet.h"
#include "server/serving/job_admission.h"
#include "server/serving/job_lifecycle.h"
#include "server/serving/job_outcomes.h"
#include "server/serving/maintenance.h"
#include "server/serving/server_folder.h"
#include "server/serving/service_options.h"
#include "server/serving/serving_context.h"
#include "server/serving/shared_queue.h"
#include "server/serving/wanted_groups.h"
#include "server/serving/watch_hub.h"

namespace tessera::server {

class DurableImageService final : public ImageService {
 public:
  // Describes every model, opens the job store, and starts each group on a thread. A model that cannot be read, or a
  // layout that is not possible, is tried again later, provided that at least one other works. Errors: no model works,
  // or the data folder cannot be used or is in use by another process.
  static absl::StatusOr<std::unique_ptr<DurableImageService>> Start(const DurableServiceOptions& options);
  ~DurableImageService() override;  // kills the groups; the next process queues running tasks again

  absl::StatusOr<Submitted> Submit(const Caller& caller, const JobRequest& request,
                                   const std::optional<IdempotencyKey>& idempotency) override {
    return admission_->Submit(caller, request, idempotency);
  }
  absl::StatusOr<std::optional<Submitted>> FindSubmission(const Caller& caller,
                                                          const IdempotencyKey& idempotency) override {
    return admission_->FindSubmission(caller, idempotency);
  }
  void CountRejection(const absl::Status& refused) override { admission_->CountRejection(refused); }
  absl::StatusOr<Job> Get(const Caller& caller, absl::string_view job) override;
  absl::StatusOr<JobPage> List(const Caller& caller, const ListOptions& options) override;
  absl::StatusOr<Job> Cancel(const Caller& caller, absl::string_view job) override {
    return jobs_->Cancel(caller.tenant, std::string(job));
  }
  absl::StatusOr<std::unique_ptr<JobWatch>> Watch(const Caller& caller, absl::string_view job, WatchedEvents events,
                                                  Listener listener) override;
  absl::StatusOr<std::vector<DayUsage>> Usage(const UsageQuery& query) override;
  absl::StatusOr<ImageFile> OpenImage(const Caller& caller, absl::string_view image) override;
  std::vector<ServedModel> ListModels() override;
  ServerInfo Info() override;
  absl::StatusOr<LoadedAdapter> LoadAdapter(const std::string& name) override;
  absl::Status UnloadAdapter(const std::string& name) override { return storage_.adapters->Unload(name); }
  absl::StatusOr<StoredPicture> PutPicture(const Caller& caller, absl::string_view file) override;
  absl::StatusOr<std::string> ReadPicture(const Caller& caller, const control::PictureUse& picture) override;
  absl::StatusOr<UploadedFile> PutFile(const Caller& caller, absl::string_view file) override;
  absl::StatusOr<UploadedFile> FindFile(const Caller& caller, absl::string_view id) override;
  absl::StatusOr<std::vector<UploadedFile>> ListFiles(const Caller& caller) override;
  absl::Status DeleteFile(const Caller& caller, absl::string_view id) override;
  absl::Status Ready() override;
  absl::Status Probe() override { return fleet_->Probe(); }
  std::string MetricsText() override { return metrics_.Text(Info()); }

  // Weights of tenants that share the work while several have tasks; a tenant that is not named has weight 1.
  void SetShares(const std::map<std::string, double>& shares);
  // Applies to jobs that are submitted from now on.
  void SetLimits(const ServiceLimits& limits) { admission_->SetLimits(limits); }
  // Starts to serve these groups and returns before they are ready. Groups already served continue, and retry at once
  // if they could not start. Other groups finish their running tasks and end; waiting tasks of a model that is no
  // longer served fail.
  void SetGroups(const std::vector<ServedGroupOptions>& groups) { wanted_->Set(groups); }
  // Makes groups that could not start retry at once, because a missing part may now be available.
  void TryGroups();

  // Stops accepting jobs and lets running tasks end until the timeout; the others are given back to the queue.
  void Drain(absl::Duration timeout);

 private:
  explicit DurableImageService(const DurableServiceOptions& options);
  absl::Status Open();
  absl::Status OpenStore();
  absl::Status OpenContents();
  std::function<std::string(const std::string& tenant)> PictureKeys() const;
  std::vector<std::string> ModelIds();
  control::ModelDescription DescriptionOf(const std::string& model);  // empty: not served, or it cannot be read
  // Converts an error of the store to the one that callers get.
  absl::Status ErrorForCaller(const absl::Status& status) const;

  // Stores of jobs, results and contents.
  struct Storage {
    base::SystemClock clock;
    DiskResultStore results;
    std::unique_ptr<JobStore> jobs;
    std::unique_ptr<ContentStore> contents;
    std::unique_ptr<ServedAdapters> adapters;
    std::unique_ptr<UploadedPictures> pictures;
  };

  const DurableServiceOptions options_;
  const absl::Time started_;
  ServiceMetrics metrics_;
  QueueTrace trace_;
  ServiceMonitor monitor_;
  ServedModels models_;  // guarded by monitor_
  WatchHub hub_;
  ServerFolder own_folder_;  // used if the data folder is shared
  std::unique_ptr<GroupFleet> fleet_;
  Storage storage_;
  std::unique_ptr<const ServingContext> context_;
  std::unique_ptr<JobOutcomes> outcomes_;
  std::unique_ptr<JobLifecycle> jobs_;
  std::unique_ptr<JobAdmission> admission_;
  std::unique_ptr<Maintenance> maintenance_;
  std::unique_ptr<SharedQueue> shared_queue_;  // null unless the queue is shared
  std::unique_ptr<WantedGroups> wanted_;
};

}  // namespace tessera::server
