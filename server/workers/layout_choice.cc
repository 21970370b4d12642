#include "server/workers/layout_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/host/device.h"
#include "control/model/model_description.h"
#include "control/parameters/placement.h"
#include "server/workers/rank_placement.h"

namespace tessera::server {
namespace {

constexpr char kAuto[] = "auto";

bool IsAuto(const LayoutRequest& request) {
  return request.layout == kAuto || (request.layout.empty() && request.ranks.has_value());
}

}  // namespace

absl::StatusOr<std::optional<parallel::Layout>> ReadLayout(const LayoutRequest& request) {
  if (request.ranks.has_value() && (*request.ranks < 1 || *request.ranks > parallel::kMaxRanks)) {
    return absl::InvalidArgumentError(absl::StrCat("ranks is ", *request.ranks, "; valid values are 1 to ",
                                                   parallel::kMaxRanks, ", and the nearest is ",
                                                   std::clamp(*request.ranks, 1, parallel::kMaxRanks)));
  }
  if (IsAuto(request)) {
    if (request.ranks.has_value()) return std::nullopt;
    return absl::InvalidArgumentError("layout is 'auto', which needs a number of ranks (--ranks)");
  }
  if (request.layout.empty()) return parallel::Layout();
  absl::StatusOr<parallel::Layout> layout = parallel::ParseLayout(request.layout);
  if (!layout.ok()) return layout.status();
  return *layout;
}

parallel::LayoutModel LayoutModelOf(const control::ModelDescription& model, control::Dtype dtype) {
  parallel::LayoutModel numbers = {.heads = std::max(model.heads, 1),
                                   .blocks = std::max(model.blocks, 1),
                                   .max_cfg_branches = 2,
                                   .usual_cfg_branches = static_cast<int>(control::DefaultWork(model).rows),
                                   .distilled_steps = model.is_distilled() ? model.default_steps : 0};
  const auto bytes_per_weight = static_cast<uint64_t>(control::ElementBytes(dtype));
  for (const control::ModelComponent& component : model.components) {
    (component.role == control::ComponentRole::kTransformer ? numbers.block_bytes : numbers.other_bytes) +=
        component.parameters * bytes_per_weight;
  }
  return numbers;
}

uint64_t WeightBytes(const control::ModelDescription& model, control::Dtype dtype) {
  const parallel::LayoutModel numbers = LayoutModelOf(model, dtype);
  return numbers.block_bytes + numbers.other_bytes;
}

control::HostTopology TopologyOfThisHost() { return control::ReadHostTopology(*control::MakeGpuDriver()); }

absl::StatusOr<parallel::Layout> ChooseLayout(const LayoutRequest& request, const parallel::LayoutModel& model,
                                              const std::string& devices,
                                              const std::function<control::HostTopology()>& topology) {
  ASSIGN_OR_RETURN(const std::optional<parallel::Layout> read, ReadLayout(request));
  if (!read.has_value()) {
    const bool alike = *request.ranks == 1 || devices == control::DeviceText({});
    return parallel::AutoLayout(*request.ranks, model,
                                alike ? std::nullopt : NearRanks(devices, *request.ranks, topology()));
  }
  parallel::LayoutPlace place = {.ranks = request.ranks};
  RETURN_IF_ERROR(parallel::CheckLayout(*read, model, place));
  return *read;
}

}  // namespace tessera::server
