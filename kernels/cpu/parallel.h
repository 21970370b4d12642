// Runs work on LibTorch's threads for files that use the precompiled header. at::parallel_for itself is an OpenMP
// template, which needs a compiler flag that a precompiled header cannot be shared across.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace tessera::kernels::cpu {

// Elements of work that are worth a thread.
inline constexpr int64_t kGrainElements = 32768;

// Returns how many threads ParallelFor and ShareOut can use: one if the caller already runs on one of several.
int64_t AvailableThreads();

// Calls body(first, last) on LibTorch's threads for disjoint ranges that cover [0, count). No range but the last is
// shorter than `grain`. Rethrows exceptions of the body to the caller.
void ParallelFor(int64_t count, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

// Distributes pieces of work by work stealing. Each thread starts with an equal share of adjacent pieces; a thread that
// has finished its share takes pieces from the end of another's, so that no thread waits for one whose processor is
// busy with something else.
class PieceShares {
 public:
  struct Range {
    int64_t first = 0, last = 0;

    bool empty() const { return first == last; }
  };

  PieceShares(int64_t count, int64_t threads);  // fewer than 2^31 pieces

  // Returns the next pieces for the thread: at most `most` from its share, or one from another thread's. An empty range
  // means that no work is left.
  Range Take(int64_t thread, int64_t most);

 private:
  struct alignas(64) Share {
    std::atomic<uint64_t> left;  // lower half: first piece not taken; upper half: end
  };

  std::vector<Share> shares_;
};

// Calls body(take) once on each of LibTorch's threads, or only on the calling thread if that is one of them.
// `take(most)` is Take for that thread; the body calls it until the range is empty. Rethrows exceptions of the body to
// the caller.
using TakePieces = std::function<PieceShares::Range(int64_t most)>;
void ShareOut(int64_t count, const std::function<void(const TakePieces& take)>& body);

}  // namespace tessera::kernels::cpu
