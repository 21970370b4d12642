#include "runtime/engine/joined_ranks.h"

#include <chrono>
#include <cstdio>
#include <vector>

#include "absl/strings/str_cat.h"
#include "control/host/communicators.h"
#include "control/host/gpu_driver.h"
#include "control/host/host_topology.h"
#include "parallel/segment/effort_meter.h"
#include "runtime/device/nccl_log.h"

namespace tessera::runtime {
namespace {

// The front end watches the ranks and ends a group whose ranks no longer get on, so this is only the last resort.
constexpr std::chrono::hours kCommunicatorDeadline(2);

// Describes for the log how the ranks exchange tensors. Their communicators are warm; `nccl_log` may be null.
std::string HowRanksExchange(const parallel::MeshCommunicators& communicators, const NcclLog* nccl_log) {
  if (communicators.uses_nccl()) {
    const std::string log = nccl_log == nullptr ? "" : nccl_log->Take().value_or("");
    const NcclRoutes routes = ReadNcclRoutes(log);
    const control::HostTopology topology = control::ReadHostTopology(*control::MakeGpuDriver());
    const std::optional<std::string> warning = SlowNetworkWarning(routes, topology);
    return absl::StrCat("the ranks exchange tensors through ",
                        control::ExchangeText("NCCL", TransportsOf(routes, topology, communicators.cards())),
                        warning ? "\nwarning: " : "", warning.value_or(""));
  }
  const std::string& why = communicators.why_not_nccl();
  return absl::StrCat("the ranks exchange tensors through the memory of the host",
                      why.empty() ? "" : "; NCCL is not used: ", why);
}

}  // namespace

parallel::Mesh MeshOf(const parallel::Layout& layout) {
  const absl::StatusOr<parallel::Mesh> mesh = parallel::Mesh::Create(layout.mesh, layout.ranks());
  TORCH_CHECK(mesh.ok(), std::string(mesh.status().message()));
  return *mesh;
}

JoinedRanks::JoinedRanks(at::Device device, const WorkerRank& place)
    : place_(place),
      communicators_(place.ranks() == 1 || place.data > 0
                         ? nullptr
                         : std::make_unique<parallel::MeshCommunicators>(
                               device, place.segment, place.rank,
                               parallel::HostCommunicatorOptions{.deadline = kCommunicatorDeadline},
                               parallel::NcclOptions{.deadline = kCommunicatorDeadline})),
      training_communicators_(place.ranks() == 1 || place.data == 0
                                  ? nullptr
                                  : std::make_unique<HostTrainingGroups>(
                                        device, place.segment, place.rank,
                                        parallel::HostCommunicatorOptions{.deadline = kCommunicatorDeadline})),
      training_(training_communicators_ == nullptr ? TrainingGroups::Alone(one_) : training_communicators_->groups()),
      groups_(communicators_ == nullptr ? training_.model : communicators_->groups()),
      context_{.attention = attention_, .tensor = one_, .world = groups_.world} {}

void JoinedRanks::WarmUp(at::Device device) const {
  if (communicators_ == nullptr) return;
  communicators_->WarmUp();
  // With NCCL, ranks differ in their connections.
  if (!device.is_cpu() && (place_.rank == 0 || communicators_->uses_nccl())) {
    std::fprintf(stderr, "%s\n", HowRanksExchange(*communicators_, place_.nccl_log.get()).c_str());
  }
}

bool JoinedRanks::OnEveryRank(bool holds) const {
  const std::vector<int64_t> one_each(static_cast<size_t>(groups_.control.size()), 1);
  return groups_.control.AllGather(at::full({1}, holds), one_each).all().item<bool>();
}

void JoinedRanks::WaitFor(const Mark& mark) const {
  const parallel::DeviceWait waiting(place_.segment.get(), place_.rank);
  if (communicators_ != nullptr && communicators_->uses_nccl()) {
    communicators_->WaitUntil([&] { return mark.IsReached(); });
  } else {
    mark.Wait();
  }
}

}  // namespace tessera::runtime
