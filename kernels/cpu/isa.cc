#include "kernels/cpu/isa.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace tessera::kernels::cpu {
namespace {

#if defined(__x86_64__) && defined(__linux__)
// Linux grants access to the tile registers only on request (Documentation/arch/x86/xstate.rst).
bool KernelGrantsTiles() {
  constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
  constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

// Returns the number of levels up to the widest that the processor and the operating system support.
size_t CountSupported() {
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 1;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512vl")) {
    return 2;
  }
  if (!__builtin_cpu_supports("avx512bf16")) return 3;
  const bool tiles = __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("amx-tile") &&
                     __builtin_cpu_supports("amx-bf16") && KernelGrantsTiles();
  return tiles ? 5 : 4;
}
#else
size_t CountSupported() { return 1; }
#endif

struct Level {
  std::string_view name;
  Isa isa;
};

constexpr Level kLevels[] = {{"baseline", Isa::kBaseline},
                             {"avx2", Isa::kAvx2},
                             {"avx512", Isa::kAvx512},
                             {"avx512_bf16", Isa::kAvx512Bf16},
                             {"amx", Isa::kAmx}};

const Level& Choose() {
  constexpr char kVariable[] = "TESSERA_INSTRUCTION_SET";
  const size_t supported = CountSupported() - 1;
  const char* const most = std::getenv(kVariable);
  if (most == nullptr || *most == '\0') return kLevels[supported];
  for (size_t level = 0; level < std::size(kLevels); ++level) {
    if (kLevels[level].name == most) return kLevels[std::min(level, supported)];
  }
  throw std::invalid_argument(std::string(kVariable) + " is '" + std::string(most).substr(0, 40) +
                              "'; valid values are baseline, avx2, avx512, avx512_bf16 and amx");
}

const Level& Chosen() {
  static const Level& level = Choose();
  return level;
}

}  // namespace

Isa BestIsa() { return Chosen().isa; }

std::string_view InstructionSetName() { return Chosen().name; }

}  // namespace tessera::kernels::cpu
