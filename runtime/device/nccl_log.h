// What NCCL writes into its log about the connections that it makes: the one place where it says by what it moves data.
// LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/file_descriptor.h"
#include "control/host_topology.h"

namespace tessera::runtime {

// The log of this process, in memory that has no name.
class NcclLog {
 public:
  // Tells NCCL to write it, by the environment: for a program's main, before it has threads. A user who has NCCL_DEBUG
  // or NCCL_DEBUG_FILE in the environment has the log for himself.
  NcclLog();

  // What NCCL has written so far, which is forgotten with that; nothing where the user has it.
  std::optional<std::string> Take() const;

 private:
  base::FileDescriptor file_;
};

// The ways of data between a rank and others.
struct NcclRoutes {
  bool peer_to_peer = false;  // between cards of a host
  bool host_memory = false;
  bool infiniband = false;
  bool sockets = false;
  bool other_network = false;  // of a plug-in of NCCL's

  bool operator==(const NcclRoutes&) const = default;
};

// Of a log, whose lines may be anything: "… NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "… [send] via
// NET/IB/0/GDRDMA".
NcclRoutes ReadNcclRoutes(std::string_view log);

// Names of control::Transport, rising. What lies between the cards of a host the topology says; `cards` are those of
// the ranks, "GPU-…", of which the topology has those of this host.
std::vector<std::string> TransportsOf(const NcclRoutes& routes, const control::HostTopology& topology,
                                      const std::vector<std::string>& cards);

// Where sockets are used though the host has InfiniBand.
std::optional<std::string> SlowNetworkWarning(const NcclRoutes& routes, const control::HostTopology& topology);

}  // namespace tessera::runtime
