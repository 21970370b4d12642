// EffortMeter measures, on its own thread, how much work a rank's process does, for the process that detects hung
// ranks.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "parallel/segment/segment.h"

namespace tessera::parallel {

// Adds two times to a rank's HostSegment::Effort: the processor time that this process uses while the rank is in no
// call of a communicator (in a call it may be waiting busily for another rank), and the time for which a thread waits
// for the rank's device (DeviceWait). A process that is stopped or deadlocked adds nothing.
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

// During its lifetime the calling thread waits for work that the rank's device has begun, and the device's time counts
// as the rank's effort. `segment` must outlive it, or is null for a rank that is not monitored.
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
