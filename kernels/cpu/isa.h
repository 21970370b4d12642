// Selects the instruction set for the CPU versions of the operators. Every version is compiled on every machine and one
// is chosen at run time; tests pass the lower ones explicitly.
#pragma once

#include <string_view>

namespace tessera::kernels::cpu {

enum class Isa {
  kBaseline,    // the compiler's default target
  kAvx2,        // AVX2 and FMA
  kAvx512,      // AVX-512 F, BW, DQ and VL
  kAvx512Bf16,  // kAvx512 and AVX-512 BF16
  kAmx,         // kAvx512Bf16 and AMX tiles for bf16
};

// Returns the widest set that the processor and its operating system allow, limited by the environment variable
// TESSERA_INSTRUCTION_SET if that is set. Requests the tile registers from the operating system once per process.
// Throws std::invalid_argument if the variable has none of the names below.
Isa BestIsa();

// Returns the name of BestIsa: "baseline", "avx2", "avx512", "avx512_bf16" or "amx".
std::string_view InstructionSetName();

}  // namespace tessera::kernels::cpu
