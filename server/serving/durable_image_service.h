// The service over real models: jobs are kept by a job store, planned by the scheduler and run by worker groups.
//
// A submission is durable before it is answered; what was queued or running when the process ended is queued again when
// the next one starts. Thread-safe.
//
// This class only puts the parts together and hands calls on: JobAdmission takes jobs in, JobLifecycle carries their
// tasks from the queue to their end, JobOutcomes stores what became of them, WatchHub tells who watches, GroupFleet has
// the groups, WantedGroups changes them, SharedQueue follows the other servers of the
// queue, and Maintenance looks after the rest. They share one lock (ServiceMonitor).
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
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

namespace tessera::server {

class DurableImageService final : public ImageService {
 public:
  // Describes every model, opens the job store, and lets the groups start on threads of their own. A model that cannot
  // be read, or a layout that cannot be, is tried again later, as long as there is another one. Errors: there is none,
  // a data folder that cannot be used or is another process's.
  static absl::StatusOr<std::unique_ptr<DurableImageService>> Start(const DurableServiceOptions& options);
  ~DurableImageService() override;  // kills the groups; what runs is queued again by the next process

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
  absl::StatusOr<ImageFile> OpenImage(const Caller& caller, absl::string_view image) override;
  std::vector<ServedModel> ListModels() override;
  ServerInfo Info() override;
  absl::StatusOr<LoadedAdapter> LoadAdapter(const std::string& name) override;
  absl::Status UnloadAdapter(const std::string& name) override { return storage_.adapters->Unload(name); }
  absl::Status Ready() override;
  absl::Status Probe() override { return fleet_->Probe(); }
  std::string MetricsText() override { return metrics_.Text(Info()); }

  // Of the work while several keys want some, by tenant; one that is not named has 1.
  void SetShares(const std::map<std::string, double>& shares);
  // For jobs from now on.
  void SetLimits(const ServiceLimits& limits) { admission_->SetLimits(limits); }
  // Serves these groups from now on; returns before it does. Those that are served already go on, and try at once where
  // they could not start. Others finish what runs in them and end; what waits for a model that is gone fails.
  void SetGroups(const std::vector<ServedGroupOptions>& groups) { wanted_->Set(groups); }
  // Groups that could not start try at once, because something has come that they may have missed.
  void TryGroups();

  // Accepts no more jobs, and lets those that run end until the timeout is over; the others are given back to the
  // queue.
  void Drain(absl::Duration timeout);

 private:
  explicit DurableImageService(const DurableServiceOptions& options);
  absl::Status Open();
  absl::Status OpenStore();
  absl::Status OpenAdapters();
  std::vector<std::string> ModelIds();
  control::ModelDescription DescriptionOf(const std::string& model);  // empty: it is not served, or cannot be read
  // What callers are told of an error of the store.
  absl::Status ErrorForCaller(const absl::Status& status) const;

  // What jobs, results and adapters are kept in.
  struct Storage {
    base::SystemClock clock;
    DiskResultStore results;
    std::unique_ptr<JobStore> jobs;
    std::unique_ptr<ServedAdapters> adapters;
  };

  const DurableServiceOptions options_;
  const absl::Time started_;
  ServiceMetrics metrics_;
  QueueTrace trace_;
  ServiceMonitor monitor_;
  ServedModels models_;  // guarded by monitor_
  WatchHub hub_;
  ServerFolder own_folder_;  // where the data folder is shared
  std::unique_ptr<GroupFleet> fleet_;
  Storage storage_;
  std::unique_ptr<const ServingContext> context_;
  std::unique_ptr<JobOutcomes> outcomes_;
  std::unique_ptr<JobLifecycle> jobs_;
  std::unique_ptr<JobAdmission> admission_;
  std::unique_ptr<Maintenance> maintenance_;
  std::unique_ptr<SharedQueue> shared_queue_;  // of a queue that is shared
  std::unique_ptr<WantedGroups> wanted_;
};

}  // namespace tessera::server
