// The communicators of one rank for every axis of a mesh, made once its device is known: of NCCL where every rank has a
// card of its own that it serves, else of the memory of the host.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parallel/host/host_communicator.h"
#include "parallel/nccl/nccl_groups.h"
#include "parallel/rank_groups.h"
#include "parallel/segment/mesh_groups.h"

namespace tessera::parallel {

class MeshCommunicators {
 public:
  // For tensors of `device`. `segment` was made with MeshGroups, of which it may hold more. All ranks of the world call
  // it; throws CommError where they do not come together.
  MeshCommunicators(at::Device device, const std::shared_ptr<HostSegment>& segment, int rank,
                    const HostCommunicatorOptions& options, const NcclOptions& nccl = {});

  // Whether the axes are NCCL's; and where a device has it and they are not, why.
  bool uses_nccl() const { return nccl_ != nullptr; }
  const std::string& why_not_nccl() const { return why_not_nccl_; }

  // The ranks' cards by rank, as DeviceRuntime::card has them; only with NCCL.
  const std::vector<std::string>& cards() const { return nccl_->cards(); }

  // Has NCCL connect all ranks by calls of each kind and size class on every group, so that the first step waits for
  // nothing of it, and the memory that it takes counts as taken. All ranks call it; nothing is done without NCCL.
  void WarmUp() const;

  // Returns when it is so; only with NCCL. Throws CommError as NcclGroups has it. Any thread may call it.
  void WaitUntil(const std::function<bool()>& is_so) const { nccl_->WaitUntil(is_so); }

  // Valid as long as this is.
  RankGroups groups() const {
    return {.cfg = *cfg_,
            .pipe = *pipe_,
            .sequence = *sequence_,
            .ring = *ring_,
            .ulysses = *ulysses_,
            .tensor = *tensor_,
            .world = *world_,
            .control = *control_,
            .rows = rows_ == nullptr ? *control_ : *rows_};
  }

 private:
  std::unique_ptr<Communicator> Join(std::string_view name) const;

  const at::Device device_;
  const std::shared_ptr<HostSegment> segment_;
  const int rank_;
  const HostCommunicatorOptions options_;
  std::string why_not_nccl_;
  std::unique_ptr<Communicator> control_;
  std::unique_ptr<Communicator> rows_;  // null: control_
  std::unique_ptr<NcclGroups> nccl_;    // outlives what is joined of it
  std::unique_ptr<Communicator> cfg_, pipe_, sequence_, ring_, ulysses_, tensor_, world_;
};

}  // namespace tessera::parallel
