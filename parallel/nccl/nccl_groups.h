// NcclGroups holds one rank's NCCL communicators for the axes of its mesh: one for the world of ranks, from which those
// of the axes are split. Groups with the same members share a communicator, except the ring, because the limit of
// thread blocks is a property of a communicator.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/nccl/nccl_communicator.h"
#include "parallel/nccl/nccl_rank.h"

namespace tessera::parallel {

class NcclGroups {
 public:
  // Collective over the ranks of `control`, with the groups' names in the same order; the first name is the world's.
  // Returns null on all ranks, and the reason, if a rank has no NCCL or no whole card for itself, or if ranks have
  // different versions of NCCL. Throws CommError if the ranks do not connect within the deadline.
  static std::unique_ptr<NcclGroups> Connect(at::Device device, const std::shared_ptr<HostSegment>& segment,
                                             int world_rank, Communicator& control,
                                             const std::vector<std::string_view>& names, const NcclOptions& options,
                                             std::string& reason);

  // The card of each rank of the world, from DeviceRuntime::card.
  const std::vector<std::string>& cards() const { return cards_; }

  // Returns a SingleRank if no group of that name contains this rank and another one. Valid during the lifetime of this
  // object.
  std::unique_ptr<Communicator> Join(std::string_view name) const;

  // Polls until `is_so` returns true. Throws CommError if the ranks are poisoned, a communicator has an asynchronous
  // error, or the deadline has passed. Any thread may call it.
  void WaitUntil(const std::function<bool()>& is_so) const;

 private:
  struct Group {
    int index = -1;  // in the segment
    int ctas = 0;    // most thread blocks per call; 0: NCCL chooses
    std::shared_ptr<NcclHandle> handle = nullptr;
  };

  NcclGroups(NcclRank rank, std::vector<std::string> cards) : rank_(std::move(rank)), cards_(std::move(cards)) {}

  void ConnectWorld(std::string_view name, Communicator& control);
  void Split(std::string_view name);
  // Returns once the communicator is no longer in progress. Fails if `result` or the final state is an error.
  void Settle(kernels::NcclResult result, kernels::NcclComm* comm, const Group& group, const char* call) const;
  [[noreturn]] void Fail(const Group& group, const char* call, const NcclFailure& failure) const;

  const NcclRank rank_;
  const std::vector<std::string> cards_;
  Group world_;
  int64_t connected_ = 0;  // communicators that all ranks have begun to create together, including the current one
  std::map<std::string, Group, std::less<>> groups_;
};

}  // namespace tessera::parallel
