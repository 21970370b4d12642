// Simulates the clock of a card, in nanoseconds. From operation counts and bytes it estimates how long the issued work
// would take on an H100, when each stream reaches it, and when an event is reached. So events can be pending, and tests
// can measure what overlaps.
//
// Streams run concurrently, except for copies between host and card: only one runs at a time in each direction. Each
// host thread has its own time. A call takes 1 us of it, a wait advances it to the time waited for, and a query
// answered with "not ready" advances it a quarter of the way there, so that polling ends. Threads that wait for each
// other on the host do not share their times, and ranks do not wait for each other. The clock does not model work that
// begins too early for that reason, nor the speed of kernels that share the card.
//
// The clock is off unless FAKE_CUDA_CLOCK is 1: then all work is done as soon as it is issued.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::fake_cuda {

// Copies of pageable memory have a separate engine because the host waits for them.
enum class Engine { kCompute, kToDevice, kToHost, kPageable, kNccl };

// The cost of an operation on a card.
struct Work {
  Engine engine = Engine::kCompute;
  int64_t nanoseconds = 2000;  // a launch alone

  static Work Kernel(int64_t threads);
  static Work Flops(double flops, double flops_per_nanosecond);
  // Returns a copy within the card's memory.
  static Work Copy(int64_t bytes);
  // Returns a copy between host and card.
  static Work Transfer(Engine engine, int64_t bytes);
  static Work Exchange(int64_t bytes);
};

struct Interval {
  long stream = 0;
  Engine engine = Engine::kCompute;
  int64_t begin = 0, end = 0;
};

namespace card_clock {

bool IsOn();

// Returns the calling thread's time.
int64_t Now();
// Charges the calling thread for one call.
void Issue();
// Advances the calling thread's time to `time`. No real time passes.
void WaitUntil(int64_t time);
// Returns whether the thread has reached `time`. If not, advances the thread's time.
bool Ask(int64_t time);

// When the device may begin its next copy in that direction. The caller sets the reference to the end of that copy and
// must hold a lock.
int64_t& CopiesEnd(int device, Engine engine);

// Writes the interval to the log (fake_cuda_log.h).
void Log(const Interval& interval);

}  // namespace card_clock
}  // namespace tessera::fake_cuda
