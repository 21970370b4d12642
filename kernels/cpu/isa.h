// Which instruction set the CPU versions of the operators may use. Every version is compiled on every machine and one
// is chosen at run time; tests pass the lower ones explicitly.
#pragma once

#include <string_view>

namespace tessera::kernels::cpu {

enum class Isa {
  kBaseline,    // what the compiler's default target has
  kAvx2,        // AVX2 and FMA
  kAvx512,      // AVX-512 F, BW, DQ and VL
  kAvx512Bf16,  // the same and AVX-512 BF16
  kAmx,         // the same and AMX tiles for bf16
};

// The widest set that this processor and its kernel allow, and that is no wider than the one that the environment's
// TESSERA_INSTRUCTION_SET names, where it names one. Asks the kernel for the tile registers once per process. Throws
// std::invalid_argument for a name that is none of those below.
Isa BestIsa();

// Its name: "baseline", "avx2", "avx512", "avx512_bf16" or "amx".
std::string_view InstructionSetName();

}  // namespace tessera::kernels::cpu
