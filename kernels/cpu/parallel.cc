#include "kernels/cpu/parallel.h"

#include <ATen/Parallel.h>

#include <algorithm>

namespace tessera::kernels::cpu {
namespace {

uint64_t Packed(int64_t first, int64_t last) {
  return static_cast<uint64_t>(last) << 32 | static_cast<uint64_t>(first);
}

// The last piece of a share is never stolen: its thread starts it as soon as any other could.
constexpr int64_t kLeastToTakeFrom = 2;

struct Left {
  explicit Left(uint64_t packed) : first(packed & 0xFFFFFFFF), last(packed >> 32) {}

  int64_t count() const { return last - first; }

  int64_t first, last;
};

// Takes pieces from the front of a thread's own share.
PieceShares::Range TakeOwn(std::atomic<uint64_t>& share, int64_t most) {
  uint64_t now = share.load(std::memory_order_relaxed);
  while (true) {
    const Left left(now);
    const int64_t next = left.first + std::min(most, left.count());
    if (share.compare_exchange_weak(now, Packed(next, left.last), std::memory_order_relaxed)) return {left.first, next};
  }
}

// Takes one piece from the end of another thread's share.
PieceShares::Range TakeOthers(std::atomic<uint64_t>& share) {
  uint64_t now = share.load(std::memory_order_relaxed);
  while (true) {
    const Left left(now);
    if (left.count() < kLeastToTakeFrom) return {};
    const int64_t last = left.last - 1;
    if (share.compare_exchange_weak(now, Packed(left.first, last), std::memory_order_relaxed)) return {last, left.last};
  }
}

}  // namespace

int64_t AvailableThreads() { return at::in_parallel_region() ? 1 : at::get_num_threads(); }

void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  at::parallel_for(0, count, grain, body);
}

PieceShares::PieceShares(int64_t count, int64_t threads) : shares_(static_cast<size_t>(threads)) {
  for (int64_t i = 0; i < threads; ++i) {
    shares_[static_cast<size_t>(i)].left = Packed(count * i / threads, count * (i + 1) / threads);
  }
}

PieceShares::Range PieceShares::Take(int64_t thread, int64_t most) {
  const auto threads = static_cast<int64_t>(shares_.size());
  Range taken = TakeOwn(shares_[static_cast<size_t>(thread)].left, most);
  for (int64_t next = 1; next < threads && taken.empty(); ++next) {
    taken = TakeOthers(shares_[static_cast<size_t>((thread + next) % threads)].left);
  }
  return taken;
}

void ShareOut(int64_t count, const std::function<void(const TakePieces& take)>& body) {
  const int64_t threads = std::clamp<int64_t>(count, 1, AvailableThreads());
  PieceShares shares(count, threads);
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t last) {
    for (int64_t thread = first; thread < last; ++thread) {
      body([&](int64_t most) { return shares.Take(thread, most); });
    }
  });
}

}  // namespace tessera::kernels::cpu
