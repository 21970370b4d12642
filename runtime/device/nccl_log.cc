#include "runtime/device/nccl_log.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/fields/enum_names.h"
#include "base/text/string_views.h"
#include "control/host/communicators.h"

namespace tessera::runtime {
namespace {

constexpr size_t kMaxLogBytes = 16 << 20;

}  // namespace

NcclLog::NcclLog() {
  if (std::getenv("NCCL_DEBUG") != nullptr || std::getenv("NCCL_DEBUG_FILE") != nullptr) return;
  base::FileDescriptor file(memfd_create("tessera-nccl-log", MFD_CLOEXEC));
  if (file.get() < 0) return;
  setenv("NCCL_DEBUG", "INFO", /*overwrite=*/1);
  // A user who wants other parts of the log sets NCCL_DEBUG as well.
  setenv("NCCL_DEBUG_SUBSYS", "INIT,NET", /*overwrite=*/1);
  setenv("NCCL_DEBUG_FILE", absl::StrCat("/proc/self/fd/", file.get()).c_str(), /*overwrite=*/1);
  file_ = std::move(file);
}

std::optional<std::string> NcclLog::Take() const {
  if (file_.get() < 0) return std::nullopt;
  std::string log;
  std::string part(1 << 16, '\0');
  for (off_t offset = 0; log.size() < kMaxLogBytes;) {
    const ssize_t count = pread(file_.get(), part.data(), part.size(), offset);
    if (count <= 0) break;
    log.append(part, 0, static_cast<size_t>(count));
    offset += count;
  }
  // Later output follows a hole, which reads as zeros and takes no memory.
  if (ftruncate(file_.get(), 0) != 0) return std::nullopt;
  return log;
}

NcclRoutes ReadNcclRoutes(std::string_view log) {
  NcclRoutes routes;
  for (absl::string_view line : absl::StrSplit(base::AbslView(log), '\n')) {
    const size_t channel = line.find(" NCCL INFO Channel ");
    if (channel == line.npos) continue;
    const size_t via = line.find(" via ", channel);
    if (via == line.npos) continue;
    const absl::string_view way = line.substr(via + 5);
    if (absl::StartsWith(way, "P2P/")) {
      routes.peer_to_peer = true;
    } else if (absl::StartsWith(way, "SHM/")) {
      routes.host_memory = true;
    } else if (absl::StartsWith(way, "NET/IB/")) {
      routes.infiniband = true;
    } else if (absl::StartsWith(way, "NET/Socket/")) {
      routes.sockets = true;
    } else if (absl::StartsWith(way, "NET/")) {
      routes.other_network = true;
    }
  }
  return routes;
}

std::vector<std::string> TransportsOf(const NcclRoutes& routes, const control::HostTopology& topology,
                                      const std::vector<std::string>& cards) {
  using control::Transport;
  std::vector<std::string> names;
  const auto add = [&](bool used, Transport transport) {
    if (used) names = control::UnionOf(names, {base::EnumName(transport)});
  };
  if (routes.peer_to_peer) {
    std::vector<size_t> here;
    for (const std::string& card : cards) {
      if (const std::optional<size_t> gpu = topology.FindGpu(card)) here.push_back(*gpu);
    }
    const bool known = topology.knows_nvlink && here.size() > 1;
    add(!known, Transport::kPeerToPeer);
    for (size_t i = 0; known && i < here.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const bool nvlink = topology.link(here[i], here[j]) == control::GpuLink::kNvlink;
        add(true, nvlink ? Transport::kNvlink : Transport::kPcie);
      }
    }
  }
  add(routes.host_memory, Transport::kHostMemory);
  add(routes.infiniband, Transport::kInfiniband);
  add(routes.sockets, Transport::kSockets);
  add(routes.other_network, Transport::kOtherNetwork);
  return names;
}

std::optional<std::string> SlowNetworkWarning(const NcclRoutes& routes, const control::HostTopology& topology) {
  if (!routes.sockets) return std::nullopt;
  const auto port = std::find_if(topology.infiniband.begin(), topology.infiniband.end(),
                                 [](const base::InfinibandPort& p) { return p.active; });
  if (port == topology.infiniband.end()) return std::nullopt;
  return absl::StrCat("NCCL connects GPUs through sockets, though port ", port->port, " of ", port->device,
                      " is active: see that libibverbs1 and ibverbs-providers are installed where workers run, that "
                      "they may use /dev/infiniband, and that NCCL_IB_DISABLE is not 1");
}

}  // namespace tessera::runtime
