// Names the ways in which ranks exchange tensors, for DeviceIdentity::communicator (control/protocol/commands.h) and
// certificates.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::control {

inline constexpr char kHostCommunicator[] = "host";  // host memory that the ranks share
inline constexpr char kNcclCommunicator[] = "nccl";  // each rank has a GPU to itself

// How NCCL moves data between two ranks.
enum class Transport : uint8_t {
  kNvlink,
  kPcie,        // directly between GPUs
  kPeerToPeer,  // NVLink or PCIe, not known which
  kHostMemory,
  kInfiniband,  // or RDMA over Ethernet
  kSockets,
  kOtherNetwork,
};
constexpr auto NamesOf(Transport) {
  return std::array{"NVLink",     "PCIe",    "NVLink or PCIe", "the memory of the host",
                    "InfiniBand", "sockets", "another network"};
}

// The union of two lists of transport names, sorted, without duplicates.
std::vector<std::string> UnionOf(const std::vector<std::string>& transports, const std::vector<std::string>& others);

// "nccl over NVLink and sockets", or the communicator's name alone if no transport is known.
std::string ExchangeText(const std::string& communicator, const std::vector<std::string>& transports);

}  // namespace tessera::control
