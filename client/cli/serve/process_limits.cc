#include "client/cli/serve/process_limits.h"

#include <sys/resource.h>

#include <algorithm>
#include <limits>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "control/host/device.h"
#include "parallel/plan/layout.h"
#include "server/listeners/descriptor_shares.h"

namespace tessera::client {
namespace {

// Open files of a server without workers: standard streams, the job store, listeners, event loops.
constexpr int64_t kOwnFiles = 32;
constexpr int64_t kFilesOfRank = 5;
constexpr int64_t kFilesOfSharedStore = 16;
constexpr int64_t kFilesOfNodes = 16;
constexpr int64_t kFilesOfFetching = 40;
constexpr int64_t kLeastConnections = 4;
// Threads of a server without workers, including those of gRPC; per rank, the threads that watch it and the worker's
// threads that do not compute.
constexpr int64_t kOwnThreads = 56;
constexpr int64_t kThreadsOfSharedStore = 6;
constexpr int64_t kThreadsOfNodes = 24;
constexpr int64_t kThreadsOfFetching = 24;
constexpr int64_t kThreadsOfRank = 12;
// Of a `tessera node` without ranks; for each rank, those that carry its channels and its worker's own, as above.
constexpr int64_t kNodeFiles = 24;
constexpr int64_t kNodeFilesOfRank = 8;
constexpr int64_t kNodeThreads = 24;
constexpr int64_t kNodeThreadsOfRank = 12;

int64_t RanksOf(const server::GroupConfig& group) {
  const absl::StatusOr<parallel::Layout> layout = parallel::ParseLayout(group.layout);
  const int64_t ranks = layout.ok() ? layout->ranks() : 1;  // "auto" has one rank per device
  return std::max<int64_t>(ranks, static_cast<int64_t>(group.devices.size()));
}

bool IsOnNodes(const server::GroupConfig& group) {
  return std::ranges::all_of(group.devices,
                             [](const std::string& device) { return !control::SplitDevice(device).node.empty(); });
}

}  // namespace

ProcessNeeds NeedsOf(const server::ServerConfig& config) {
  const int64_t processors = base::ReadMachineProcessors().available();
  int64_t files = kOwnFiles + kLeastConnections, tasks = kOwnThreads;
  if (!config.store.dsn.empty()) {
    files += kFilesOfSharedStore;
    tasks += kThreadsOfSharedStore;
  }
  if (config.nodes.enabled) {
    files += kFilesOfNodes;
    tasks += kThreadsOfNodes;
  }
  if (!config.picture_hosts.empty() || !config.input_check.url.empty()) {
    files += kFilesOfFetching;
    tasks += kThreadsOfFetching;
  }
  for (const server::GroupConfig& group : config.groups) {
    const int64_t ranks = RanksOf(group) * group.count;
    files += kFilesOfRank * ranks;
    tasks += kThreadsOfRank * ranks;
    if (IsOnNodes(group)) continue;
    tasks += group.placement.threads > 0 ? group.placement.threads * ranks : std::max(processors, ranks);
  }
  int64_t most = files;
  while (server::SharesOf(most).http < files) ++most;
  return {.files = most, .tasks = tasks};
}

ProcessNeeds NeedsOfNode(int64_t places) {
  const int64_t processors = base::ReadMachineProcessors().available();
  return {.files = kNodeFiles + kNodeFilesOfRank * places,
          .tasks = kNodeThreads + kNodeThreadsOfRank * places + std::max(processors, places)};
}

absl::Status CheckFileLimit(int64_t needed, int64_t most) {
  if (most >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the limit of open files (RLIMIT_NOFILE) is ", most, ", and ", needed,
      " are needed: raise it (ulimit -n, LimitNOFILE= of a systemd service, --ulimit nofile= for docker)"));
}

absl::Status PrepareProcessLimits(const ProcessNeeds& needs, const std::vector<base::TaskLimit>& limits) {
  rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    rlimit raised = limit;
    raised.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
    const int64_t most =
        limit.rlim_cur == RLIM_INFINITY ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(limit.rlim_cur);
    RETURN_IF_ERROR(CheckFileLimit(needs.files, most));
  }
  return base::CheckTaskLimits(needs.tasks, limits);
}

}  // namespace tessera::client
