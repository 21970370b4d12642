// Counts operators as signs of progress of this process.
#pragma once

#include <atomic>
#include <cstdint>

namespace tessera::runtime {

// From this call on, every operator of LibTorch on any thread increments `beats`. Encoding, denoising, decoding and
// loading all consist of operators, and a rank that waits for another one runs none. Called once, from a worker's main;
// `beats` must outlive the process's use of LibTorch.
void BeatWithEveryOperator(std::atomic<uint64_t>& beats);

// Counts as one operator, for work without operators such as reading files.
void SignOfLife();

}  // namespace tessera::runtime
