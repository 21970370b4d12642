#include "server/planning/planner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"
#include "base/text/byte_text.h"
#include "control/host/device.h"
#include "control/host/driver_memory.h"
#include "control/model/group_share.h"
#include "control/model/memory_fit.h"
#include "control/model/model_description.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/placement.h"
#include "server/workers/layout_choice.h"

namespace tessera::server {
namespace {

constexpr double kSecondsPerHour = 3600;
constexpr int kWarmupSteps = 1;  // for layouts with patches, like xDiT's default

absl::StatusOr<Plan> PlanOf(const parallel::Layout& layout, const PlanRequest& request) {
  Plan plan = {.layout = layout, .time = {}, .weights = {}};
  const bool shares = request.machine.is_one_host();
  plan.replicas = shares ? 1 : request.devices / layout.ranks();
  plan.idle = shares ? 0 : request.devices % layout.ranks();
  ASSIGN_OR_RETURN(plan.time, TimeOf(layout, request.model, request.work, request.machine));
  plan.images_per_hour = static_cast<double>(plan.replicas) * kSecondsPerHour / plan.time.image();
  ASSIGN_OR_RETURN(plan.memory_bytes, MemoryOf(layout, request.model, request.work));
  const Machine machine = request.machine.For(layout.ranks(), layout.ranks());
  const double lacking = static_cast<double>(plan.memory_bytes) - machine.memory_bytes;
  if (request.machine.memory_bytes > 0 && lacking > 0) plan.missing_bytes = static_cast<uint64_t>(std::ceil(lacking));
  plan.weights = WeightsOf(layout, request.model, request.work.dtype);
  ASSIGN_OR_RETURN(const parallel::ForwardPass pass, PassOf(request.model, request.work));
  ASSIGN_OR_RETURN(const SentBytes sent, BytesSent(layout, request.model.transformer, pass));
  plan.step_bytes = sent.most.total();
  return plan;
}

void Recommend(const PlanRequest& request, Plans& plans) {
  const auto eligible = [&](const Plan& plan) {
    return plan.fits() && (request.approximate || plan.layout.lossless()) &&
           (!request.slo.has_value() || plan.time.image() <= *request.slo);
  };
  for (size_t i = 0; i < plans.plans.size(); ++i) {
    const Plan& plan = plans.plans[i];
    if (!eligible(plan)) continue;
    const bool better =
        !plans.recommended.has_value() ||
        (request.slo.has_value() && plan.images_per_hour > plans.plans[*plans.recommended].images_per_hour);
    if (better) plans.recommended = i;
  }
  if (plans.recommended.has_value()) {
    const Plan& best = plans.plans[*plans.recommended];
    plans.reason =
        request.slo.has_value()
            ? absl::StrFormat("It makes the most images an hour of those that take at most %.3g s.", *request.slo)
            : "It makes an image in the shortest time of those that fit into memory.";
    if (best.idle > 0) absl::StrAppend(&plans.reason, " ", best.idle, " of ", request.devices, " devices are idle.");
    return;
  }
  const auto least = std::ranges::min_element(plans.plans, {}, &Plan::memory_bytes);
  const bool any_fits = std::ranges::any_of(plans.plans, &Plan::fits);
  if (!any_fits && least != plans.plans.end()) {
    plans.reason = absl::StrCat("Nothing fits: ", parallel::LayoutText(least->layout), " needs least, and lacks ",
                                base::ByteText(least->missing_bytes), " a device.");
    return;
  }
  plans.reason = absl::StrFormat("Nothing that fits makes an image in %.3g s.", request.slo.value_or(0));
  const auto fastest = std::ranges::find_if(
      plans.plans, [&](const Plan& plan) { return plan.fits() && (request.approximate || plan.layout.lossless()); });
  if (fastest != plans.plans.end()) {
    absl::StrAppend(&plans.reason, absl::StrFormat(" The fastest is %s with %.3g s.",
                                                   parallel::LayoutText(fastest->layout), fastest->time.image()));
  }
}

// Plans one rank on one device of the request, unless ranks share a host's memory.
void FitOneDevice(const PlanRequest& request, Plans& plans) {
  if (request.machine.is_one_host() || request.machine.memory_bytes <= 0) {
    plans.unfit = "weights wait in main memory only of devices with memory of their own";
    return;
  }
  const auto serial = std::ranges::find_if(plans.plans, [](const Plan& plan) { return plan.layout.ranks() == 1; });
  const uint64_t bytes = request.memory_limit.value_or(static_cast<uint64_t>(request.machine.memory_bytes));
  absl::StatusOr<std::vector<LinkFit>> fits =
      FitsOf(request.model, request.work, request.weights, {.device = bytes, .main = request.main_memory},
             serial == plans.plans.end() ? 0 : serial->time.step);
  if (fits.ok()) {
    plans.fits = *std::move(fits);
  } else {
    plans.unfit = std::string(fits.status().message());
  }
}

}  // namespace

absl::StatusOr<std::vector<LinkFit>> FitsOf(const control::ModelDescription& model, const PlannedImage& work,
                                            control::WeightStorage weights, const DeviceAndMain& memory,
                                            double compute_seconds) {
  if (model.weights.empty()) return absl::FailedPreconditionError("the sizes of the model's weights are not known");
  ASSIGN_OR_RETURN(const parallel::ForwardPass pass, PassOf(model, work));
  const control::ImageWork image = {.size = {.height = work.height, .width = work.width},
                                    .text_tokens = pass.text_tokens.front(),
                                    .rows = std::ssize(pass.text_tokens)};
  const control::GroupShare share = control::ShareOf({}, control::DeviceKind::kCuda, work.dtype);
  control::FitQuery query = {.storage = weights,
                             .element_bytes = share.element_bytes,
                             .cached_bytes = static_cast<int64_t>(control::LoadParameters().prompt_cache_bytes),
                             .step_bytes = control::StepBytes(model.cost, image, /*images=*/1, share),
                             .decode_bytes = control::DecodeBytes(model.cost, image, share)};
  const uint64_t free_bytes = memory.device - std::min(memory.device, control::kDriverBytes);
  control::FitDevice device = {.free_bytes = static_cast<int64_t>(free_bytes)};
  const control::FitNeeds needs = control::NeedsOf(model.weights, query);
  absl::StatusOr<control::MemoryFit> fit = control::ChooseFit(needs, device);
  if (!fit.ok()) {
    device.link_bytes_per_second = kMemoryLinks[0];
    const std::optional<control::WeightStorage> smaller = control::SmallerStorage(model.weights, query, device);
    return absl::ResourceExhaustedError(absl::StrCat(
        fit.status().message(), smaller ? absl::StrCat("; it fits with --weights ", base::EnumName(*smaller)) : ""));
  }
  constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  const auto main_bytes = static_cast<int64_t>(std::min(memory.main.value_or(kMost), kMost));
  RETURN_IF_ERROR(control::CheckMainMemory(model.weights, query, device, main_bytes));
  std::vector<LinkFit> fits;
  for (const double rate : kMemoryLinks) {
    device.link_bytes_per_second = rate;
    control::PredictTimes(device, query.step_flops, *fit);
    fit->compute_seconds = compute_seconds;
    fits.push_back({.bytes_per_second = rate, .fit = *fit, .main = control::MainMemoryOf(needs, *fit, main_bytes)});
  }
  return fits;
}

absl::Status CheckObjective(const PlanRequest& request) {
  if (request.devices < 1 || request.devices > kMaxPlannedDevices) {
    return absl::InvalidArgumentError(absl::StrCat("gpus is ", request.devices, "; valid values are 1 to ",
                                                   kMaxPlannedDevices, ", and the nearest is ",
                                                   std::clamp<int64_t>(request.devices, 1, kMaxPlannedDevices)));
  }
  if (request.slo.has_value() && !(*request.slo > 0 && std::isfinite(*request.slo))) {
    return absl::InvalidArgumentError(absl::StrCat("slo is ", *request.slo, "; it must be more than 0 seconds"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Plans> MakePlans(const PlanRequest& request) {
  RETURN_IF_ERROR(CheckObjective(request));
  const int most_text = request.model.cost.text_tokens;
  if (request.work.text_tokens.has_value() &&
      (*request.work.text_tokens < 1 || *request.work.text_tokens > most_text)) {
    return absl::InvalidArgumentError(absl::StrCat("text-tokens is ", *request.work.text_tokens,
                                                   "; valid values of this model are 1 to ", most_text));
  }
  if (request.work.steps < 1) {
    return absl::InvalidArgumentError(absl::StrCat("steps is ", request.work.steps, "; it must be at least 1"));
  }
  const parallel::LayoutModel model = LayoutModelOf(request.model, request.work.dtype);
  Plans made;
  const auto add = [&](const parallel::Layout& layout) -> absl::Status {
    ASSIGN_OR_RETURN(Plan plan, PlanOf(layout, request));
    ++made.layouts_timed;
    made.plans.push_back(std::move(plan));
    return absl::OkStatus();
  };
  const int most = static_cast<int>(std::min<int64_t>(request.devices, parallel::kMaxRanks));
  for (int ranks = 1; ranks <= most; ++ranks) {
    for (const parallel::JudgedLayout& judged : parallel::JudgeLayouts(ranks, model)) {
      if (!judged.verdict.ok() || judged.layout.mesh.cfg > model.usual_cfg_branches) continue;
      RETURN_IF_ERROR(add(judged.layout));
      if (judged.layout.mesh.pipe == 1 || request.work.steps <= kWarmupSteps) continue;
      parallel::Layout stale = judged.layout;
      stale.patches = stale.mesh.pipe;
      stale.warmup = kWarmupSteps;
      if (parallel::CheckLayout(stale, model).ok()) RETURN_IF_ERROR(add(stale));
    }
  }
  std::ranges::stable_sort(made.plans, {}, [](const Plan& plan) { return plan.time.image(); });
  Recommend(request, made);
  FitOneDevice(request, made);
  if (request.approximate && parallel::HasFewSteps(model)) {
    absl::StrAppend(&made.reason, " PipeFusion is left out: the model is distilled to ", model.distilled_steps,
                    " steps, of which its warm-up would be most.");
  }
  return made;
}

}  // namespace tessera::server
