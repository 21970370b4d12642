// One rank's end of NCCL: where it computes, by which functions, and who ends it; and how it waits.
#pragma once

#include <c10/core/Device.h>

#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "kernels/device_runtime.h"
#include "kernels/nccl_api.h"
#include "parallel/collective.h"
#include "parallel/segment/segment.h"

namespace tessera::parallel {

struct NcclOptions {
  std::chrono::nanoseconds connect_deadline = std::chrono::minutes(2);  // until all ranks of a group are there
  std::chrono::nanoseconds deadline = std::chrono::minutes(1);          // of a wait for the device
  // The most thread blocks that a call of the ring takes from attention, which runs beside it. The other groups' calls
  // have nothing beside them and take as many as NCCL chooses.
  int ring_ctas = 8;
};

// Outlives the communicators that refer to it.
struct NcclRank {
  const kernels::NcclApi& api;
  const kernels::DeviceRuntime& runtime;
  c10::Device device;
  std::shared_ptr<HostSegment> segment;
  int world_rank;  // as the segment has it
  NcclOptions options;
  // Held by whoever calls NCCL: one thread issues, and another may wait meanwhile, but to ask for a communicator's
  // state is to change it.
  std::shared_ptr<std::mutex> calls = std::make_shared<std::mutex>();
};

// Why a rank gave up. Ranks are those of the world; -1: unknown.
struct NcclFailure {
  int culprit = -1;
  std::string reason;
  bool relayed = false;  // another rank or a third party had ended the group
};

// What ended the world of ranks, if anything has.
std::optional<NcclFailure> FailureByPoison(const HostSegment& segment);

// What NCCL says of a result that is neither success nor progress.
std::string NcclErrorText(const kernels::NcclApi& api, kernels::NcclResult result, kernels::NcclComm* comm);

// The asynchronous error of a communicator.
kernels::NcclResult StateOf(const NcclRank& rank, kernels::NcclComm* comm);

// A communicator of NCCL's, which groups of equal members share. Left as it is where the world of ranks was poisoned,
// or an exception is on its way: to destroy it would wait for ranks that do not come.
class NcclHandle {
 public:
  NcclHandle(const NcclRank& rank, kernels::NcclComm* comm) : rank_(rank), comm_(comm) {}
  ~NcclHandle() {
    if (!rank_.segment->IsPoisoned() && std::uncaught_exceptions() == exceptions_) (void)rank_.api.destroy(comm_);
  }
  NcclHandle(const NcclHandle&) = delete;
  NcclHandle& operator=(const NcclHandle&) = delete;

  kernels::NcclComm* get() const { return comm_; }

 private:
  const NcclRank& rank_;
  kernels::NcclComm* const comm_;
  const int exceptions_ = std::uncaught_exceptions();
};

// A wait that looks again and again. Meanwhile the segment shows that the rank is within this call of the group, so
// that whoever watches the ranks does not take it for the one that the others wait for.
class NcclWait {
 public:
  // `group` of the segment.
  NcclWait(const NcclRank& rank, int group, Collective kind, int64_t sequence, std::chrono::nanoseconds deadline);
  ~NcclWait();

  // Between two looks: passes some time, and tells why the wait is to end: poison, an error of `comm`, or the deadline,
  // with the rank that has not come.
  std::optional<NcclFailure> Pass(kernels::NcclComm* comm);

 private:
  NcclFailure Late() const;
  host_layout::RankArea& AreaOf(int world_rank) const;

  const NcclRank& rank_;
  const int group_;
  const Collective kind_;
  const int64_t sequence_;
  const std::chrono::nanoseconds deadline_;
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace tessera::parallel
