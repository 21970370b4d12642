// The table of NCCL's functions, from a library that is loaded when the first rank of several asks for it.
#pragma once

#include <string>

#include "kernels/nccl_api.h"

namespace tessera::kernels {

// The library that LibTorch's CUDA half is linked to.
inline constexpr char kNcclLibrary[] = "libnccl.so.2";

// "2.28.9" of 22809.
std::string NcclVersionText(int version);

// Of `library`, a name for the dynamic loader; the one of the first call stays. Null with what is wrong, for a user:
// text that continues "NCCL is not used: ".
const NcclApi* OpenNccl(const char* library, std::string& problem) noexcept;

}  // namespace tessera::kernels
