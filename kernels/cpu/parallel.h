// Work for several threads, on at::parallel_for and for files that use the precompiled header: LibTorch's own is an
// OpenMP template, which needs a compiler flag that a precompiled header cannot be shared across.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::kernels::cpu {

// Calls body(first, last) on LibTorch's threads for disjoint ranges that cover [0, count).
// No range but the last is shorter than `grain`. Exceptions of the body come back to the caller.
void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

// Work in pieces that threads take as they get on. Each has an even share of pieces that lie side by side; who has done
// its own takes from the end of another's, so that nobody waits for a thread whose processor does something else.
class PieceShares {
 public:
  struct Range {
    int64_t first = 0, last = 0;

    bool empty() const { return first == last; }
  };

  PieceShares(int64_t count, int64_t threads);  // fewer than 2^31 pieces

  // What the thread does next: at most so many of its own, or one of another's; empty: it is done.
  Range Take(int64_t thread, int64_t most);

 private:
  struct alignas(64) Share {
    std::atomic<uint64_t> left;  // the first that nobody has taken, and in the upper half the end
  };

  std::vector<Share> shares_;
};

// Calls body(take) once on each of LibTorch's threads; where one of them calls it, on that one alone. `take(most)` is
// Take of that thread; the body asks until there is nothing left. Exceptions of the body come back to the caller.
using TakePieces = std::function<PieceShares::Range(int64_t most)>;
void ShareOut(int64_t count, const std::function<void(const TakePieces& take)>& body);

}  // namespace tessera::kernels::cpu
