// Lists the instruction sets for which this machine can run an operator's variant.
#pragma once

#include <vector>

#include "kernels/cpu/isa.h"

namespace tessera {

inline std::vector<kernels::cpu::Isa> IsasOfThisMachine() {
  std::vector<kernels::cpu::Isa> isas;
  for (int isa = 0; isa <= static_cast<int>(kernels::cpu::BestIsa()); ++isa) {
    isas.push_back(static_cast<kernels::cpu::Isa>(isa));
  }
  return isas;
}

}  // namespace tessera
