// Which layout a model is to run on: what the user asked for, checked against what is known of the model before any of
// its weights are read. Pure but for the topology of this host, which only the choice of a layout reads.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "control/host_topology.h"
#include "control/model_description.h"
#include "parallel/plan/layout.h"

namespace tessera::server {

// As asked for. A layout without a number of ranks has as many as it names; a number without a layout is "auto".
struct LayoutRequest {
  std::string layout;        // a layout's text, "auto" or empty
  std::optional<int> ranks;  // processes or devices
};

// InvalidArgument for a text that is no layout, or a number of ranks that no group can have. Needs no model; nullopt
// where only the model decides.
absl::StatusOr<std::optional<parallel::Layout>> ReadLayout(const LayoutRequest& request);

// Guidance branches of a request without options. A model that reads a true CFG scale has its guidance built in.
int UsualBranches(const control::ModelDescription& model);

// What decides a layout of `model`, served in `dtype`.
parallel::LayoutModel LayoutModelOf(const control::ModelDescription& model, control::Dtype dtype);

// All its weights as served.
uint64_t WeightBytes(const control::ModelDescription& model, control::Dtype dtype);

// How the GPUs of this host reach each other, now.
control::HostTopology TopologyOfThisHost();

// The layout that was asked for, or the best one for that number of ranks on these devices (LoadParameters::device).
// InvalidArgument with the reason and the nearest valid layouts. `topology` is called where ranks have GPUs or hosts of
// their own and the layout is chosen for them.
absl::StatusOr<parallel::Layout> ChooseLayout(
    const LayoutRequest& request, const parallel::LayoutModel& model, const std::string& devices,
    const std::function<control::HostTopology()>& topology = TopologyOfThisHost);

}  // namespace tessera::server
