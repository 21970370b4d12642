// at::parallel_for for files that use the precompiled header: LibTorch's own is an OpenMP template, which needs a
// compiler flag that a precompiled header cannot be shared across.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::kernels::cpu {

// Calls body(first, last) on LibTorch's threads for disjoint ranges that cover [0, count).
// No range but the last is shorter than `grain`. Exceptions of the body come back to the caller.
void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

}  // namespace tessera::kernels::cpu
