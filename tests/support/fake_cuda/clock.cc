#include "tests/support/fake_cuda/clock.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "tests/support/fake_cuda/machine.h"

namespace tessera::fake_cuda {
namespace {

constexpr int64_t kLaunch = 2000, kExchangeLaunch = 8000, kCall = 1000;
// Bytes per nanosecond: of the card's memory, of a PCIe 5.0 link, of the link behind a host thread that copies pageable
// memory into the driver's pinned buffers, of NVLink.
constexpr int64_t kMemoryRate = 3000, kHostRate = 50, kPageableRate = 10, kLinkRate = 300;

thread_local int64_t now = 0;

}  // namespace

Work Work::Kernel(int64_t threads) {
  constexpr int64_t kBytesOfThread = 32;  // a load and a store of 16 bytes each
  return {.nanoseconds = kLaunch + threads * kBytesOfThread / kMemoryRate};
}

Work Work::Flops(double flops, double flops_per_nanosecond) {
  return {.nanoseconds = kLaunch + static_cast<int64_t>(flops / flops_per_nanosecond)};
}

Work Work::Copy(int64_t bytes) { return {.nanoseconds = kLaunch + 2 * bytes / kMemoryRate}; }

Work Work::Transfer(Engine engine, int64_t bytes) {
  return {.engine = engine, .nanoseconds = kLaunch + bytes / (engine == Engine::kPageable ? kPageableRate : kHostRate)};
}

Work Work::Exchange(int64_t bytes) {
  return {.engine = Engine::kNccl, .nanoseconds = kExchangeLaunch + bytes / kLinkRate};
}

namespace card_clock {

bool IsOn() {
  static const bool on = TheMachine().options().clock;
  return on;
}

int64_t Now() { return now; }

void Issue() { now += kCall; }

void WaitUntil(int64_t time) {
  if (IsOn()) now = std::max(now, time);
}

bool Ask(int64_t time) {
  if (!IsOn() || time <= now) return true;
  now += std::max<int64_t>((time - now) / 4, kCall);
  return false;
}

int64_t& CopiesEnd(int device, Engine engine) {
  static std::array<std::array<int64_t, 2>, kMostDevices> ends = {};
  return ends.at(static_cast<size_t>(device)).at(engine == Engine::kToHost ? 1 : 0);
}

void Log(const Interval& interval) {
  constexpr const char* kNames[] = {"compute", "H2D", "D2H", "pageable", "nccl"};
  TheMachine().log().Write("busy", interval.stream, kNames[static_cast<int>(interval.engine)], interval.begin,
                           interval.end);
}

}  // namespace card_clock
}  // namespace tessera::fake_cuda
