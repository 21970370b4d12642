#include "kernels/cpu/parallel.h"

#include <ATen/Parallel.h>

namespace tessera::kernels::cpu {

void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, count, grain, body);
}

}  // namespace tessera::kernels::cpu
