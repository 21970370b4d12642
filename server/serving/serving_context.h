// What the parts of the service share, and what each of them may know of the others.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/log_line.h"
#include "control/load_parameters.h"
#include "parallel/plan/layout.h"
#include "server/adapters/served_adapters.h"
#include "server/jobs/job_store.h"
#include "server/serving/served_models.h"
#include "server/serving/service_metrics.h"
#include "server/serving/service_monitor.h"
#include "server/serving/watch_hub.h"
#include "server/trace/queue_trace.h"

namespace tessera::server {

// A group as the jobs in it see it.
struct ServingGroup {
  std::string name;
  control::LoadParameters load;
  parallel::Layout layout;
  ServedModels::Model model;
  std::string contents;  // Loaded::contents
};

// The groups as the jobs' parts of the service see them.
class ServingGroups {
 public:
  virtual ~ServingGroups() = default;

  virtual ServingGroup Find(const ServiceMonitor::Lock& lock, GroupId group) const = 0;
  // What its runner says of itself; the scheduler learns it here.
  virtual void OnReady(const ServiceMonitor::Lock& lock, GroupId group,
                       const std::optional<control::MemoryBudget>& memory_budget) = 0;
  virtual void OnRefused(const ServiceMonitor::Lock& lock, GroupId group) = 0;
  // Groups that work for nobody, and would do so for longer than their workers take to start, are started again.
  virtual void ReplaceAbandoned(const ServiceMonitor::Lock& lock) = 0;
};

// All of it outlives the parts.
struct ServingContext {
  ServiceMonitor& monitor;
  JobStore& store;
  WatchHub& hub;
  ServedModels& models;  // guarded by the monitor
  ServingGroups& groups;
  ServedAdapters& adapters;
  ServiceMetrics& metrics;
  QueueTrace& trace;
  base::EventLog log;
};

// The job as callers see it, from its record and from what the process knows beside it.
Job JobOf(const ServingContext& context, const ServiceMonitor::Lock& lock, const JobRecord& record);

// Until a waiting task starts; absent also while no group of its model is ready.
std::optional<absl::Duration> ExpectedWaitOf(RequestScheduler& scheduler, TaskId task);

absl::Status DrainingError();   // for callers who come too late
absl::Status NotServedError();  // of a job that waits for a model that is gone

}  // namespace tessera::server
