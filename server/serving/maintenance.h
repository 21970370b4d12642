// What the service does about time that passes and about a disk in trouble: ends what is too late or too large,
// replaces groups that work for nobody, tries the storage, releases those who wait for it, and forgets old jobs and
// adapters that nobody needs.
#pragma once

#include <cstdint>
#include <thread>

#include "absl/time/time.h"
#include "server/serving/job_lifecycle.h"
#include "server/serving/job_outcomes.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

class Maintenance final {
 public:
  // `disk_timeout`: as in DurableServiceOptions.
  Maintenance(const ServingContext& context, const JobLifecycle& jobs, JobOutcomes& outcomes,
              absl::Duration disk_timeout)
      : context_(context), jobs_(jobs), outcomes_(outcomes), disk_timeout_(disk_timeout) {}
  ~Maintenance();  // after the monitor has stopped

  // Runs it a few times a second, on a thread of its own, until the monitor stops.
  void Start();

  // Once; by one thread at a time.
  void RunMaintenance();

 private:
  void EndWhatCannotRun();
  void ReportQueuePositions(const ServiceMonitor::Lock& lock);
  void TryStorage();
  void SettleImages();
  void Sweep();
  void RemoveUnusedAdapters();

  const ServingContext context_;
  const JobLifecycle& jobs_;
  JobOutcomes& outcomes_;
  const absl::Duration disk_timeout_;
  absl::Time settled_ = absl::InfinitePast();
  absl::Time swept_ = absl::InfinitePast();
  int64_t rounds_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
