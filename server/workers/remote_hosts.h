// RemoteHosts starts ranks on other hosts for a worker group; server/nodes implements it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/segment/segment.h"
#include "server/api/node_info.h"
#include "server/workers/rank_process.h"

namespace tessera::server {

struct RemoteRanksRequest {
  std::shared_ptr<parallel::HostSegment> segment;  // the whole group's segment on this host
  std::string layout;
  int data = 0;                      // WorkerGroupOptions::data
  std::vector<std::string> devices;  // by rank; entries without a node run on this host
};

// Ranks on other hosts. They may run while this object exists; it copies writes to the shared segments between these
// hosts and this one.
class RemoteRanks {
 public:
  virtual ~RemoteRanks() = default;
  // The processes by rank; null for ranks that run on this host. Call at most once.
  virtual std::vector<std::unique_ptr<RankProcess>> TakeProcesses() = 0;
};

class RemoteHosts {
 public:
  virtual ~RemoteHosts() = default;
  // UNAVAILABLE if a node is not connected; FAILED_PRECONDITION if it does not offer the device. Thread-safe.
  virtual absl::StatusOr<std::unique_ptr<RemoteRanks>> Start(const RemoteRanksRequest& request) = 0;
  // All nodes that have ever joined, by name. Thread-safe.
  virtual std::vector<NodeInfo> Infos() const = 0;
};

}  // namespace tessera::server
