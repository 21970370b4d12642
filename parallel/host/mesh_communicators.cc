#include "parallel/host/mesh_communicators.h"

#include "kernels/device_runtimes.h"

namespace tessera::parallel {
namespace {

std::unique_ptr<NcclGroups> ConnectNccl(at::Device device, const std::shared_ptr<HostSegment>& segment, int rank,
                                        Communicator& control, const NcclOptions& options, std::string& why_not) {
  if (device.is_cpu() || control.size() == 1 || kernels::DeviceRuntimeOf(device.type()).nccl == nullptr) return nullptr;
  return NcclGroups::Connect(
      device, segment, rank, control,
      {MeshGroupName::kWorld, MeshGroupName::kCfg, MeshGroupName::kPipe, MeshGroupName::kSequence, MeshGroupName::kRing,
       MeshGroupName::kUlysses, MeshGroupName::kTensor},
      options, why_not);
}

}  // namespace

MeshCommunicators::MeshCommunicators(at::Device device, const std::shared_ptr<HostSegment>& segment, int rank,
                                     const HostCommunicatorOptions& options, const NcclOptions& nccl)
    : segment_(segment),
      rank_(rank),
      options_(options),
      control_(JoinGroup(segment, MeshGroupName::kControl, rank, options)),
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

}  // namespace tessera::parallel
