// Chooses the layout that a model runs on: checks what the user requested against the model's description, before any
// weights are read. Pure, except that automatic choices read the topology of this host.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "control/host/host_topology.h"
#include "parallel/plan/layout.h"

namespace tessera::control {
enum class Dtype;
struct ModelDescription;
}  // namespace tessera::control

namespace tessera::server {

// The user's request. A layout without a number of ranks has as many ranks as it names; a number of ranks without a
// layout means "auto".
struct LayoutRequest {
  std::string layout;        // a layout's text, "auto" or empty
  std::optional<int> ranks;  // processes or devices
};

// Parses the requested layout without a model; nullopt where the choice depends on the model. InvalidArgument for a
// text that is not a layout or for an invalid number of ranks.
absl::StatusOr<std::optional<parallel::Layout>> ReadLayout(const LayoutRequest& request);

// The properties of `model`, served in `dtype`, that determine which layouts are valid.
parallel::LayoutModel LayoutModelOf(const control::ModelDescription& model, control::Dtype dtype);

// The size of all weights in `dtype`.
uint64_t WeightBytes(const control::ModelDescription& model, control::Dtype dtype);

// The current topology of this host: how its GPUs reach each other.
control::HostTopology TopologyOfThisHost();

// Returns the requested layout, or the best one for the requested number of ranks on these devices
// (LoadParameters::device). InvalidArgument with the reason and the nearest valid layouts. `topology` is called only if
// the layout is chosen automatically for several ranks and `devices` is not "cpu".
absl::StatusOr<parallel::Layout> ChooseLayout(
    const LayoutRequest& request, const parallel::LayoutModel& model, const std::string& devices,
    const std::function<control::HostTopology()>& topology = TopologyOfThisHost);

}  // namespace tessera::server
