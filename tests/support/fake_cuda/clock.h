// A clock of the card's own, in nanoseconds: how long what is issued would take on an H100 by its operations and bytes,
// when each stream gets to it, and when an event is reached. So events can be not ready, and it shows what overlaps.
//
// Streams run at the same time, but for copies between host and card, of which there is one at a time in each
// direction. A thread of the host has a time of its own: a call takes 1 us of it, a wait takes it to what is waited
// for, and a question that is answered with "not ready" takes it a quarter of the way there, so that asking ends.
// Threads that wait for each other on the host do not share their times, and ranks do not wait for each other: what
// begins early for that, and how fast kernels are that share the card, is not modelled.
//
// Off unless FAKE_CUDA_CLOCK is 1: all work is done as soon as it is issued.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera::fake_cuda {

// Copies of pageable memory are apart, for which the host waits.
enum class Engine { kCompute, kToDevice, kToHost, kPageable, kNccl };

// What an operation asks of a card.
struct Work {
  Engine engine = Engine::kCompute;
  int64_t nanoseconds = 2000;  // of a launch alone

  static Work Kernel(int64_t threads);
  static Work Flops(double flops, double flops_per_nanosecond);
  // On the card.
  static Work Copy(int64_t bytes);
  // Between host and card.
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

// The calling thread's time.
int64_t Now();
// A call of the host's.
void Issue();
// Takes the thread to that time, of which nothing passes on the wall.
void WaitUntil(int64_t time);
// Whether the thread has got there; the thread's time passes if not.
bool Ask(int64_t time);

// Of the device, when a copy in that direction may begin; a reference, to be moved to its end. The caller has a lock.
int64_t& CopiesEnd(int device, Engine engine);

// For the log (fake_cuda_log.h).
void Log(const Interval& interval);

}  // namespace card_clock
}  // namespace tessera::fake_cuda
