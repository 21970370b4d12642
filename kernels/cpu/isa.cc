#include "kernels/cpu/isa.h"

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tessera::cpu {
namespace {

#if defined(__x86_64__) && defined(__linux__)
// Linux hands out the tile registers on request only (Documentation/arch/x86/xstate.rst).
bool KernelGrantsTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

Isa Detect() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return Isa::kBaseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return Isa::kAvx2;
  }
  const bool tiles = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi") &&
                     __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16") && KernelGrantsTiles();
  return tiles ? Isa::kAmx : Isa::kAvx512;
}
#else
Isa Detect() { return Isa::kBaseline; }
#endif

}  // namespace

Isa BestIsa() {
  static const Isa isa = Detect();
  return isa;
}

}  // namespace tessera::cpu
