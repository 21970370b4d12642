// Other hosts that run ranks, as a worker group sees them; server/nodes has what stands behind it.
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
  std::shared_ptr<parallel::HostSegment> segment;  // of the whole group, on this host
  std::string layout;                              // its text
  int data = 0;                                    // as in WorkerGroupOptions
  std::vector<std::string> devices;                // by rank; those without a node run on this host
};

// As long as it lives the ranks may run, and what they and those of this host write into their segments is carried
// between them.
class RemoteRanks {
 public:
  virtual ~RemoteRanks() = default;
  // By rank; null for those that run on this host. To be called once.
  virtual std::vector<std::unique_ptr<RankProcess>> TakeProcesses() = 0;
};

class RemoteHosts {
 public:
  virtual ~RemoteHosts() = default;
  // UNAVAILABLE where a node is not there, FAILED_PRECONDITION where it offers no such device. Thread-safe.
  virtual absl::StatusOr<std::unique_ptr<RemoteRanks>> Start(const RemoteRanksRequest& request) = 0;
  // Of all nodes that have ever joined, by name. Thread-safe.
  virtual std::vector<NodeInfo> Infos() const = 0;
};

}  // namespace tessera::server
