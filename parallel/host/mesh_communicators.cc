#include "parallel/host/mesh_communicators.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>

#include "kernels/device_runtimes.h"

namespace tessera::parallel {
namespace {

// The world's name is the first.
constexpr std::array<std::string_view, 7> kNames = {
    MeshGroupName::kWorld, MeshGroupName::kCfg,     MeshGroupName::kPipe,  MeshGroupName::kSequence,
    MeshGroupName::kRing,  MeshGroupName::kUlysses, MeshGroupName::kTensor};

// Calls of 4 bytes, 64 KiB and 4 MiB, one for each of NCCL's three protocols, which allocate memory separately.
constexpr std::array<int64_t, 3> kWarmUpNumbers = {1, 1 << 14, 1 << 20};

bool HasGroup(const HostSegment& segment, std::string_view name) {
  return std::ranges::any_of(segment.groups(), [&](const HostGroup& group) { return group.name == name; });
}

std::unique_ptr<NcclGroups> ConnectNccl(at::Device device, const std::shared_ptr<HostSegment>& segment, int rank,
                                        Communicator& control, const NcclOptions& options, std::string& why_not) {
  if (device.is_cpu() || control.size() == 1 || kernels::DeviceRuntimeOf(device.type()).nccl == nullptr) return nullptr;
  return NcclGroups::Connect(device, segment, rank, control, {kNames.begin(), kNames.end()}, options, why_not);
}

}  // namespace

MeshCommunicators::MeshCommunicators(at::Device device, const std::shared_ptr<HostSegment>& segment, int rank,
                                     const HostCommunicatorOptions& options, const NcclOptions& nccl)
    : device_(device),
      segment_(segment),
      rank_(rank),
      options_(options),
      control_(JoinGroup(segment, MeshGroupName::kControl, rank, options)),
      rows_(HasGroup(*segment, MeshGroupName::kRows) ? JoinGroup(segment, MeshGroupName::kRows, rank, options)
                                                     : nullptr),
      nccl_(ConnectNccl(device, segment, rank, *control_, nccl, why_not_nccl_)),
      cfg_(Join(MeshGroupName::kCfg)),
      pipe_(Join(MeshGroupName::kPipe)),
      sequence_(Join(MeshGroupName::kSequence)),
      ring_(Join(MeshGroupName::kRing)),
      ulysses_(Join(MeshGroupName::kUlysses)),
      tensor_(Join(MeshGroupName::kTensor)),
      world_(Join(MeshGroupName::kWorld)) {}

std::unique_ptr<Communicator> MeshCommunicators::Join(std::string_view name) const {
  return nccl_ != nullptr ? nccl_->Join(name) : JoinGroup(segment_, name, rank_, options_);
}

void MeshCommunicators::WarmUp() const {
  if (nccl_ == nullptr) return;
  for (const std::string_view name : kNames) {
    const std::unique_ptr<Communicator> group = nccl_->Join(name);
    if (group->size() == 1) continue;
    for (const int64_t numbers : kWarmUpNumbers) {
      const auto parts = [&] {
        return at::ones({group->size(), numbers}, at::TensorOptions(at::kFloat).device(device_));
      };
      const at::Tensor sent = parts(), received = parts();
      // The world is only used for collectives, and each point-to-point channel would take memory.
      if (name != kNames[0]) group->AllToAll(sent.unbind(0), received.unbind(0));
      group->Gather(sent[0], received.flatten());
      group->Sum(sent, received);
      group->ReduceScatter(sent, received[0].unsqueeze(0), std::vector<int64_t>(static_cast<size_t>(group->size()), 1));
      group->Broadcast(received, 0);
    }
    group->Barrier();
  }
}

}  // namespace tessera::parallel
