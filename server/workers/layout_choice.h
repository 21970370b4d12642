// Which layout a model is to run on: what the user asked for, checked against what is known of the model before any of
// its weights are read. Pure.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "control/commands.h"
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

// What decides a layout of `model`, served in `dtype`.
parallel::LayoutModel LayoutModelOf(const control::ModelDescription& model, control::Dtype dtype);

// All its weights as served.
uint64_t WeightBytes(const control::ModelDescription& model, control::Dtype dtype);

// The layout that was asked for, or the best one for that number of ranks. InvalidArgument with the reason and the
// nearest valid layouts.
absl::StatusOr<parallel::Layout> ChooseLayout(const LayoutRequest& request, const parallel::LayoutModel& model);

}  // namespace tessera::server
