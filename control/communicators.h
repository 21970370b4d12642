// Through what ranks exchange tensors, as DeviceIdentity::communicator (control/commands.h) and certificates name it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::control {

inline constexpr char kHostCommunicator[] = "host";  // memory of the host that they share
inline constexpr char kNcclCommunicator[] = "nccl";  // where each has a card of its own

// By what NCCL moves data between two ranks.
enum class Transport : uint8_t {
  kNvlink,
  kPcie,        // from card to card
  kPeerToPeer,  // either of the two: nobody tells which
  kHostMemory,
  kInfiniband,  // or RDMA over Ethernet
  kSockets,
  kOtherNetwork,
};
constexpr auto NamesOf(Transport) {
  return std::array{"NVLink",     "PCIe",    "NVLink or PCIe", "the memory of the host",
                    "InfiniBand", "sockets", "another network"};
}

// Names of transports, each once, rising.
std::vector<std::string> UnionOf(const std::vector<std::string>& transports, const std::vector<std::string>& others);

// "nccl over NVLink and sockets"; the communicator alone where no transport is known.
std::string ExchangeText(const std::string& communicator, const std::vector<std::string>& transports);

}  // namespace tessera::control
