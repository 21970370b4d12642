// Maintenance does the service's periodic work: it ends tasks that are too late or too large, replaces groups whose
// tasks were all cancelled, probes the storage, releases watchers who wait for it, and removes old jobs and unused
// contents.
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
  // `disk_timeout`: see DurableServiceOptions.
  Maintenance(const ServingContext& context, const JobLifecycle& jobs, JobOutcomes& outcomes,
              absl::Duration disk_timeout)
      : context_(context),
        jobs_(jobs),
        outcomes_(outcomes),
        disk_timeout_(disk_timeout),
        // The jobs of a shared queue become known, with the contents that they need, some time after the start.
        swept_(context.store.is_shared() ? context.store.Now() : absl::InfinitePast()) {}
  ~Maintenance();  // must be called after the monitor has stopped

  // Runs RunMaintenance a few times per second on a thread until the monitor stops.
  void Start();

  // Runs one round; must not be called concurrently.
  void RunMaintenance();

 private:
  void EndWhatCannotRun();
  void ReportQueuePositions(const ServiceMonitor::Lock& lock);
  void TryStorage();
  void SettleImages();
  void Sweep();
  void RemoveUnusedContents();

  const ServingContext context_;
  const JobLifecycle& jobs_;
  JobOutcomes& outcomes_;
  const absl::Duration disk_timeout_;
  absl::Time settled_ = absl::InfinitePast();
  absl::Time swept_;
  int64_t rounds_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
