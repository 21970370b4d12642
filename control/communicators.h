// Through what ranks exchange tensors, as DeviceIdentity::communicator (control/commands.h) and certificates name it.
#pragma once

namespace tessera::control {

inline constexpr char kHostCommunicator[] = "host";  // memory of the host that they share
inline constexpr char kNcclCommunicator[] = "nccl";  // where each has a card of its own

}  // namespace tessera::control
