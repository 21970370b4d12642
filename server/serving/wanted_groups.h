// Brings the groups to what the configuration wants: installs those whose models can be read, tries the others again
// until they can, and ends those that are not wanted any more, on a thread of its own.
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

  // All that is passed outlives it.
  WantedGroups(ServiceMonitor& monitor, ServedModels& models, GroupFleet& fleet, const DurableServiceOptions& options,
               const std::string& owner);
  ~WantedGroups();  // after the monitor has stopped

  // Installs the groups of the options; called first. An error: not one of their models can be read.
  absl::Status Install();
  // Starts the runners, and from now on everything else.
  void Start(JobLifecycle& jobs, JobOutcomes& outcomes);

  void Set(std::vector<ServedGroupOptions> groups);
  // The groups that cannot be installed at present.
  std::vector<GroupInfo> UnreadableInfos(const Lock& lock) const;

 private:
  struct Unreadable {
    ServedGroupOptions options;
    size_t number = 0;  // of the first replica, in its name
    absl::Status reason;
    absl::Duration pause, next;  // of the steady clock
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
  JobLifecycle* jobs_ = nullptr;  // since Start, as the next one
  JobOutcomes* outcomes_ = nullptr;
  // Guarded by the monitor.
  std::vector<Unreadable> unreadable_;  // changed by the thread alone
  std::optional<std::vector<ServedGroupOptions>> wanted_;
  size_t next_number_ = 0;
  std::thread thread_;
};

}  // namespace tessera::server
