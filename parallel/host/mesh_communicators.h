// MeshCommunicators holds one rank's communicators for every axis of a mesh, created once its device is known. They use
// NCCL if every rank has a whole card that NCCL supports, and host memory otherwise.
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
  // For tensors on `device`. `segment` must contain the groups of MeshGroups and may contain others. Collective over
  // the world; throws CommError if the ranks cannot connect.
  MeshCommunicators(at::Device device, const std::shared_ptr<HostSegment>& segment, int rank,
                    const HostCommunicatorOptions& options, const NcclOptions& nccl = {});

  // Whether the axes use NCCL and, if the device supports it but they do not, the reason.
  bool uses_nccl() const { return nccl_ != nullptr; }
  const std::string& why_not_nccl() const { return why_not_nccl_; }

  // The ranks' cards by rank, from DeviceRuntime::card; only with NCCL.
  const std::vector<std::string>& cards() const { return nccl_->cards(); }

  // Makes NCCL connect all ranks, with calls of each kind and size class on every group, so that the first step does
  // not wait for connections and their memory is already allocated. Collective over the world; does nothing without
  // NCCL.
  void WarmUp() const;

  // Returns once `is_so` returns true; only with NCCL. Throws CommError like NcclGroups::WaitUntil. Any thread may call
  // it.
  void WaitUntil(const std::function<bool()>& is_so) const { nccl_->WaitUntil(is_so); }

  // The references are valid during the lifetime of this object.
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
  std::unique_ptr<NcclGroups> nccl_;    // outlives the communicators that it created
  std::unique_ptr<Communicator> cfg_, pipe_, sequence_, ring_, ulysses_, tensor_, world_;
};

}  // namespace tessera::parallel
