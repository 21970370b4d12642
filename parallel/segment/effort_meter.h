// Measures on a thread how much work the process of a rank does, for the process that watches for ranks that hang.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "parallel/segment/segment.h"

namespace tessera::parallel {

// Adds to HostSegment::Effort of a rank the processor time that this process takes while the rank is in no call of a
// communicator, where it may be waiting for another rank, however busily; and the time for which a thread of it waits
// for its device (DeviceWait). A process that is stopped or deadlocked adds nothing.
class EffortMeter final {
 public:
  EffortMeter(std::shared_ptr<HostSegment> segment, int rank);
  ~EffortMeter();

  EffortMeter(const EffortMeter&) = delete;
  EffortMeter& operator=(const EffortMeter&) = delete;

 private:
  void Measure();

  const std::shared_ptr<HostSegment> segment_;
  const int rank_;
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

// While it lives, the calling thread waits for work that the rank's device has begun: the device's time is the rank's
// effort. `segment` may be null, of a rank that is not watched, and outlives it otherwise.
class DeviceWait final {
 public:
  DeviceWait(const HostSegment* segment, int rank)
      : waits_(segment == nullptr ? nullptr : &segment->DeviceWaits(rank)) {
    if (waits_ != nullptr) ++*waits_;
  }
  ~DeviceWait() {
    if (waits_ != nullptr) --*waits_;
  }
  DeviceWait(const DeviceWait&) = delete;
  DeviceWait& operator=(const DeviceWait&) = delete;

 private:
  std::atomic<uint32_t>* const waits_;
};

}  // namespace tessera::parallel
