// Defines how the host's memory in which weights wait (models/loading/waiting_memory.h) is divided into chunks.
// LibTorch-free, so that a plan can count what is left over.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>

namespace tessera::models {

inline constexpr int64_t kWaitingAlignment = 512;
inline constexpr int64_t kMostChunkBytes = int64_t{256} << 20;

// The size of the next chunk for a tensor of `bytes`, after chunks of `allocated` bytes: a power of two, as LibTorch's
// allocator of pinned memory rounds sizes up to one.
constexpr int64_t WaitingChunkBytes(int64_t bytes, int64_t allocated) {
  constexpr int64_t kLeast = int64_t{1} << 16;
  const auto grown = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max<int64_t>(allocated / 4, 1))));
  const auto needed = static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(bytes, kLeast))));
  return std::max(needed, std::min(grown, kMostChunkBytes));
}

// An upper bound of the memory for tensors of `bytes` together, the largest of which has `largest`.
constexpr int64_t WaitingBytes(int64_t bytes, int64_t largest) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 4;
  if (bytes == 0 || bytes > kMost) return bytes;
  // A chunk for a tensor that is larger than the others may be half empty.
  const int64_t chunk = std::max(largest, std::min(bytes / 4, kMostChunkBytes));
  return bytes + chunk + (int64_t{1} << 20);
}

}  // namespace tessera::models
