#include "parallel/segment/effort_meter.h"

#include <signal.h>
#include <time.h>

#include <algorithm>
#include <utility>

#include "base/threads/start_thread.h"

namespace tessera::parallel {
namespace {

using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kInterval(50);

nanoseconds Read(clockid_t clock) {
  timespec time = {};
  clock_gettime(clock, &time);
  return std::chrono::seconds(time.tv_sec) + nanoseconds(time.tv_nsec);
}

}  // namespace

EffortMeter::EffortMeter(std::shared_ptr<HostSegment> segment, int rank) : segment_(std::move(segment)), rank_(rank) {
  // Blocks all signals on the new thread; other threads handle them.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = base::StartThread([this] { Measure(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

EffortMeter::~EffortMeter() {
  ending_ = true;
  thread_.join();
}

void EffortMeter::Measure() {
  nanoseconds own_before = Read(CLOCK_THREAD_CPUTIME_ID);
  nanoseconds process_before = Read(CLOCK_PROCESS_CPUTIME_ID);
  bool was_in_call = segment_->IsInCall(rank_), was_waiting = false;
  while (!ending_) {
    const nanoseconds began = Read(CLOCK_MONOTONIC);
    std::this_thread::sleep_for(kInterval);
    // Limits the time if the process was stopped or the machine slept in between.
    const nanoseconds elapsed = std::min<nanoseconds>(Read(CLOCK_MONOTONIC) - began, 2 * kInterval);
    const nanoseconds own = Read(CLOCK_THREAD_CPUTIME_ID), process = Read(CLOCK_PROCESS_CPUTIME_ID);
    const bool in_call = segment_->IsInCall(rank_);
    const bool waiting = segment_->DeviceWaits(rank_).load(std::memory_order_relaxed) > 0;
    nanoseconds effort(0);
    if (!in_call && !was_in_call) effort += (process - process_before) - (own - own_before);
    if (waiting && was_waiting) effort += elapsed;
    if (effort.count() > 0) {
      segment_->Effort(rank_).fetch_add(static_cast<uint64_t>(effort.count()), std::memory_order_relaxed);
    }
    own_before = own;
    process_before = process;
    was_in_call = in_call;
    was_waiting = waiting;
  }
}

}  // namespace tessera::parallel
