// Defines the part of a device's memory that tensors do not get. Header-only.
#pragma once

#include <cstdint>

namespace tessera::control {

// Of a limit of a device's memory, what is for the driver's context and the workspaces of its libraries.
inline constexpr uint64_t kDriverBytes = uint64_t{512} << 20;

}  // namespace tessera::control
