// Which instruction set the CPU versions of the operators may use. Every version is compiled on every machine and one
// is chosen at run time; tests pass the lower ones explicitly.
#pragma once

namespace tessera::cpu {

enum class Isa {
  kBaseline,  // what the compiler's default target has
  kAvx2,      // AVX2 and FMA
  kAvx512,    // AVX-512 F, BW, DQ and VL
  kAmx,       // the same, AVX-512 BF16, and AMX tiles for bf16
};

// The widest set this processor and its kernel allow. Asks the kernel for the tile registers once per process.
Isa BestIsa();

}  // namespace tessera::cpu
