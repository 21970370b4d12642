// NcclRank holds one rank's access to NCCL: its device, the tables of functions, and the segment that ends the world.
// NcclWait polls for events of NCCL.
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
  std::chrono::nanoseconds connect_deadline = std::chrono::minutes(2);  // until all ranks of a group have connected
  std::chrono::nanoseconds deadline = std::chrono::minutes(1);          // of a wait for the device
  // Most thread blocks that a call of the ring takes from attention, which runs concurrently. NCCL chooses the number
  // for the other groups, whose calls do not overlap with computation.
  int ring_ctas = 8;
};

// Must outlive the communicators that refer to it.
struct NcclRank {
  const kernels::NcclApi& api;
  const kernels::DeviceRuntime& runtime;
  c10::Device device;
  std::shared_ptr<HostSegment> segment;
  int world_rank;  // in the segment
  NcclOptions options;
  // Must be held while NCCL is called. One thread issues calls while another may wait, and querying a communicator's
  // state modifies it.
  std::shared_ptr<std::mutex> calls = std::make_shared<std::mutex>();
};

// The reason why a rank gave up. Ranks are those of the world; -1: unknown.
struct NcclFailure {
  int culprit = -1;
  std::string reason;
  bool relayed = false;  // another rank or a third party had ended the group
};

// Returns the failure that ended the world of ranks, or nothing if it has not ended.
std::optional<NcclFailure> FailureByPoison(const HostSegment& segment);

// Returns NCCL's message for a result that is neither success nor in progress.
std::string NcclErrorText(const kernels::NcclApi& api, kernels::NcclResult result, kernels::NcclComm* comm);

// Returns the asynchronous error of a communicator.
kernels::NcclResult StateOf(const NcclRank& rank, kernels::NcclComm* comm);

// Owns an NCCL communicator, which groups with the same members share. If the world of ranks is poisoned or an
// exception is propagating, the communicator is leaked, because destroying it would wait for ranks that do not respond.
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

// A polling wait. During the wait the segment shows that the rank is in this call of the group, so that a monitor of
// the ranks does not mistake it for the rank that the others wait for.
class NcclWait {
 public:
  // `group` is an index into the segment's groups.
  NcclWait(const NcclRank& rank, int group, Collective kind, int64_t sequence, std::chrono::nanoseconds deadline);
  ~NcclWait();

  // Called between two polls. Sleeps briefly, and returns a failure if the wait must end: because of poison, an error
  // of `comm`, or the deadline; for the latter it names the rank that has not arrived.
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
