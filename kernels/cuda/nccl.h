// Fills the table of NCCL's functions from a shared library, which is loaded when a process first needs NCCL.
#pragma once

#include <string>

#include "kernels/nccl_api.h"

namespace tessera::kernels {

// The library that LibTorch's CUDA part is linked to.
inline constexpr char kNcclLibrary[] = "libnccl.so.2";

// Returns "2.28.9" for 22809.
std::string NcclVersionText(int version);

// Loads `library`, a name for the dynamic loader; later calls return the table of the first one. Returns null on
// failure and sets `problem` to a message for the user that continues "NCCL is not used: ".
const NcclApi* OpenNccl(const char* library, std::string& problem) noexcept;

}  // namespace tessera::kernels
