// NcclLog captures NCCL's log of the connections that it makes, the only place where NCCL states how it transfers data.
// LibTorch-free.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/file_descriptor.h"
#include "control/host/host_topology.h"

namespace tessera::runtime {

// The log of this process, in an anonymous memory file.
class NcclLog {
 public:
  // Sets NCCL's environment variables so that it writes the log; to be called in main before the process has threads.
  // If the user has set NCCL_DEBUG or NCCL_DEBUG_FILE, the log is left to the user.
  NcclLog();

  // Returns what NCCL has written since the last call; nothing if the log is left to the user.
  std::optional<std::string> Take() const;

 private:
  base::FileDescriptor file_;
};

// The kinds of connections between a rank and others.
struct NcclRoutes {
  bool peer_to_peer = false;  // between cards of one host
  bool host_memory = false;
  bool infiniband = false;
  bool sockets = false;
  bool other_network = false;  // of an NCCL plug-in

  bool operator==(const NcclRoutes&) const = default;
};

// Parses a log, whose lines may contain anything: "… NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "… [send]
// via NET/IB/0/GDRDMA".
NcclRoutes ReadNcclRoutes(std::string_view log);

// Returns names of control::Transport in ascending order. The topology gives the links between the cards of the host;
// `cards` are those of the ranks, "GPU-…", of which the topology contains those of this host.
std::vector<std::string> TransportsOf(const NcclRoutes& routes, const control::HostTopology& topology,
                                      const std::vector<std::string>& cards);

// Returns a warning if sockets are used although the host has InfiniBand.
std::optional<std::string> SlowNetworkWarning(const NcclRoutes& routes, const control::HostTopology& topology);

}  // namespace tessera::runtime
