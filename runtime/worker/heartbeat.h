// Tells whoever watches this process that it gets on with its work.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::runtime {

// From now on every operator of LibTorch, on any thread, counts `beats` up by one: encoding, denoising, decoding and
// loading all consist of them, and a rank that waits for another one runs none. For a worker's main, once; `beats`
// outlives the process's use of LibTorch.
void BeatWithEveryOperator(std::atomic<uint64_t>& beats);

// Counts as an operator, for work that takes none, such as reading files.
void SignOfLife();

}  // namespace tessera::runtime
