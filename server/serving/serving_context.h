// ServingContext is what the parts of the service share, and defines what each part sees of the others.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/log/log_line.h"
#include "control/parameters/load_parameters.h"
#include "parallel/plan/layout.h"
#include "server/adapters/served_adapters.h"
#include "server/content/content_store.h"
#include "server/jobs/job_store.h"
#include "server/serving/served_models.h"
#include "server/serving/service_metrics.h"
#include "server/serving/service_monitor.h"
#include "server/trace/queue_trace.h"

namespace tessera::server {

struct Job;
class UploadedPictures;
class WatchHub;

// A group as its jobs see it.
struct ServingGroup {
  std::string name;
  control::LoadParameters load;
  parallel::Layout layout;
  ServedModels::Model model;
  std::string contents;                  // Loaded::contents
  std::optional<double> products_drift;  // LayoutCertification::products_drift
};

// The groups as the parts that handle jobs see them.
class ServingGroups {
 public:
  virtual ~ServingGroups() = default;

  virtual ServingGroup Find(const ServiceMonitor::Lock& lock, GroupId group) const = 0;
  // Report a runner's state; the scheduler is updated here.
  virtual void OnReady(const ServiceMonitor::Lock& lock, GroupId group,
                       const std::optional<control::MemoryBudget>& memory_budget) = 0;
  virtual void OnRefused(const ServiceMonitor::Lock& lock, GroupId group) = 0;
  // Restarts groups whose tasks are all to end and would take longer than a restart of the workers.
  virtual void ReplaceAbandoned(const ServiceMonitor::Lock& lock) = 0;
};

// All members outlive the parts.
struct ServingContext {
  ServiceMonitor& monitor;
  JobStore& store;
  WatchHub& hub;
  ServedModels& models;  // guarded by the monitor
  ServingGroups& groups;
  ContentStore& contents;
  ServedAdapters& adapters;
  UploadedPictures& pictures;
  ServiceMetrics& metrics;
  QueueTrace& trace;
  base::EventLog log;
  // Returns the key with which images of this API key name the pictures that they were made from (PictureNames). Null:
  // they are not named.
  std::function<std::string(const std::string& tenant)> picture_key = nullptr;
};

// Returns the job as callers see it, from its record and the state that only this process knows.
Job JobOf(const ServingContext& context, const ServiceMonitor::Lock& lock, const JobRecord& record);

// Returns the time until a waiting task starts; absent also while no group of its model is ready.
std::optional<absl::Duration> ExpectedWaitOf(RequestScheduler& scheduler, TaskId task);

absl::Status DrainingError();   // for submissions while the server drains
absl::Status NotServedError();  // for a waiting job whose model is no longer served

}  // namespace tessera::server
