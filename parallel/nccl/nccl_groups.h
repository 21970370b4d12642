// The NCCL communicators of one rank for the axes of its mesh: one for the world of ranks, of which those of the axes
// are split off. Groups of equal members share one, but for the ring: only a communicator has a bound of thread blocks.
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
  // Every rank of the world that `control` joins calls it, with the groups' names in one order, of which the first one
  // is the world's. Null on all ranks, with the reason, where one of them has no NCCL or no card of its own, or they
  // have several versions of it. Throws CommError where they do not come together within the deadline.
  static std::unique_ptr<NcclGroups> Connect(at::Device device, const std::shared_ptr<HostSegment>& segment,
                                             int world_rank, Communicator& control,
                                             const std::vector<std::string_view>& names, const NcclOptions& options,
                                             std::string& reason);

  // By rank of the world, as DeviceRuntime::card has them.
  const std::vector<std::string>& cards() const { return cards_; }

  // A SingleRank where no group of that name has this rank and another one. Valid as long as this is.
  std::unique_ptr<Communicator> Join(std::string_view name) const;

  // Looks again and again until it is so, and throws CommError where the ranks are poisoned, a communicator has an
  // asynchronous error, or the deadline has passed. Any thread may call it.
  void WaitUntil(const std::function<bool()>& is_so) const;

 private:
  struct Group {
    int index = -1;  // of the segment
    int ctas = 0;    // the most that a call takes; 0: NCCL's own choice
    std::shared_ptr<NcclHandle> handle = nullptr;
  };

  NcclGroups(NcclRank rank, std::vector<std::string> cards) : rank_(std::move(rank)), cards_(std::move(cards)) {}

  void ConnectWorld(std::string_view name, Communicator& control);
  void Split(std::string_view name);
  // Passes when the communicator is no longer in progress.
  void Settle(kernels::NcclResult result, kernels::NcclComm* comm, const Group& group, const char* call) const;
  [[noreturn]] void Fail(const Group& group, const char* call, const NcclFailure& failure) const;

  const NcclRank rank_;
  const std::vector<std::string> cards_;
  Group world_;
  int64_t connected_ = 0;  // communicators that all ranks have made together, this one included
  std::map<std::string, Group, std::less<>> groups_;
};

}  // namespace tessera::parallel
