// WantedGroups reconciles the running groups with the configuration on a thread: it installs those whose models can be
// read, retries the others until they can, and ends those that are no longer configured.
#pragma once

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/serving/group_describer.h"
#include "server/serving/group_fleet.h"
#include "server/serving/job_lifecycle.h"
#include "server/serving/job_outcomes.h"
#include "server/serving/service_options.h"
#include "server/serving/serving_context.h"

namespace tessera::server {

class WantedGroups final {
 public:
  using Lock = ServiceMonitor::Lock;

  // All arguments outlive the object.
  WantedGroups(ServiceMonitor& monitor, ServedModels& models, GroupFleet& fleet, const DurableServiceOptions& options,
               const std::string& owner);
  ~WantedGroups();  // must be called after the monitor has stopped

  // Installs the groups of the options; must be called first. Returns an error if none of their models can be read.
  absl::Status Install();
  // Starts the runners and the thread.
  void Start(JobLifecycle& jobs, JobOutcomes& outcomes);

  void Set(std::vector<ServedGroupOptions> groups);
  // Returns the groups that cannot be installed at present.
  std::vector<GroupInfo> UnreadableInfos(const Lock& lock) const;

 private:
  struct Unreadable {
    ServedGroupOptions options;
    size_t number = 0;  // number of the first replica, used in its name
    absl::Status reason;
    absl::Duration pause, next;  // pause before the next try, and its time on the steady clock
  };

  void Run();
  void Take(const Lock& lock, const std::vector<ServedGroupOptions>& groups);
  void TryUnreadable();
  void FailUnserved();
  void ShowReadable(const Lock& lock, const DescribedGroup& group);
  void ShowUnreadable(const Lock& lock, const ServedGroupOptions& group);
  void LogRefused(const std::string& model, size_t number, const absl::Status& reason) const;

  ServiceMonitor& monitor_;
  ServedModels& models_;  // guarded by the monitor
  GroupFleet& fleet_;
  const DurableServiceOptions options_;
  GroupDescriber describer_;
  JobLifecycle* jobs_ = nullptr;  // set by Start, like outcomes_
  JobOutcomes* outcomes_ = nullptr;
  // Guarded by the monitor.
  std::vector<Unreadable> unreadable_;  // changed only by the thread
  std::optional<std::vector<ServedGroupOptions>> wanted_;
  size_t next_number_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
