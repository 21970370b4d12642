#include "server/scheduling/group_capacity.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/text/byte_text.h"
#include "control/model/group_share.h"
#include "control/model/model_cost.h"

namespace tessera::server {
namespace {

std::string BytesText(double bytes) { return base::ByteText(static_cast<uint64_t>(bytes)); }

}  // namespace

void GroupCapacity::SetModel(const std::string& model, const control::ModelCost& cost) {
  models_[model] = std::make_shared<const control::ModelCost>(cost);
}

const control::ModelCost& GroupCapacity::CostOf(const std::string& model) const {
  static const control::ModelCost kUnknown;
  const auto cost = models_.find(model);
  return cost == models_.end() ? kUnknown : *cost->second;
}

double GroupCapacity::CodecFlops(const ShapeClass& shape) const {
  const control::ModelCost& cost = CostOf(shape.model);
  return control::DecodeFlops(cost, shape.work()) + cost.decode_flops_per_pixel * shape.pictures.pixels;
}

double GroupCapacity::PeakBytesOf(const ShapeClass& shape, int32_t tasks, const GroupDescription& group) const {
  const control::ModelCost& cost = CostOf(shape.model);
  // One picture is encoded at a time, in bands over all ranks like the decoded image, with activations of at most the
  // decoder's size.
  const control::ModelCost codec = {.decode_values_per_pixel = cost.decode_values_per_pixel};
  const control::ImageWork picture = {.size = {.height = 1, .width = static_cast<int64_t>(shape.pictures.largest)}};
  return std::max(control::PeakBytes(cost, shape.work(), tasks, group.share),
                  control::PeakBytes(codec, picture, 1, group.share));
}

bool GroupCapacity::Fits(const ScheduledGroup& group, const ShapeClass& shape, int32_t tasks) const {
  const GroupDescription& description = group.description;
  // A single task is never refused for its rows, because its branches can also be run one after another.
  if (tasks > 1 && (int64_t{tasks} * shape.rows > MostRows(description) || group.apart.contains(shape))) return false;
  const double peak = PeakBytesOf(shape, tasks, description);
  if (description.memory_bytes > 0 && peak > description.memory_bytes) return false;
  // A batch may use at least as much memory as one of its tasks needs alone.
  return tasks == 1 || description.free_bytes == 0 ||
         peak <= std::max(description.free_bytes, PeakBytesOf(shape, 1, description));
}

bool GroupCapacity::MayShareBatch(const ScheduledGroup& group, const ShapeClass& shape, int32_t tasks) const {
  if (!Fits(group, shape, tasks)) return false;
  if (tasks == 1 || int64_t{tasks} * shape.rows <= group.description.max_rows) return true;
  // More rows use the processors better, and a short step delays no task much.
  const double seconds =
      tasks * control::StepFlops(CostOf(shape.model), shape.work()) * group.speed.SecondsPerFlop(shape);
  return group.speed.Knows(shape) && seconds <= absl::ToDoubleSeconds(options_.short_step);
}

int64_t GroupCapacity::MostRows(const GroupDescription& group) const {
  return group.max_rows * (options_.short_step > absl::ZeroDuration() ? 2 : 1);
}

bool GroupCapacity::CouldEverRun(const ShapeClass& shape) const {
  return std::ranges::any_of(groups_.all(), [&](const auto& entry) {
    return entry.second.description.model == shape.model && Fits(entry.second, shape, 1);
  });
}

absl::Status GroupCapacity::CheckFits(const ShapeClass& shape) const {
  double largest = -1, needed = std::numeric_limits<double>::infinity();
  std::string limit;
  for (const auto& [id, group] : groups_.all()) {
    if (group.description.model != shape.model || !models_.contains(shape.model)) continue;
    if (group.description.memory_bytes > largest) limit = group.description.memory_limit;
    largest = std::max(largest, group.description.memory_bytes);
    needed = std::min(needed, PeakBytesOf(shape, 1, group.description));
  }
  if (largest < 0) {
    return absl::FailedPreconditionError(absl::StrCat("no worker group serves the model \"", shape.model, "\""));
  }
  if (CouldEverRun(shape)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "an image of ", shape.width, "x", shape.height, shape.pictures.pixels > 0 ? " from these pictures" : "",
      " needs about ", BytesText(needed), " in addition to the weights; the largest group of this model has ",
      BytesText(largest), limit.empty() ? "" : absl::StrCat(" (", limit, ")"), ": ask for a smaller image"));
}

bool GroupCapacity::IsLargeFor(const ScheduledGroup& group, const ShapeClass& shape) const {
  if (!Fits(group, shape, 1)) return true;
  const double seconds = control::StepFlops(CostOf(shape.model), shape.work()) * group.speed.SecondsPerFlop(shape);
  return seconds > absl::ToDoubleSeconds(options_.large_step);
}

bool GroupCapacity::IsLargeForSmaller(const ScheduledGroup& group, const ShapeClass& shape) const {
  return std::ranges::any_of(groups_.all(), [&](const auto& entry) {
    const ScheduledGroup& other = entry.second;
    return other.ready && other.description.model == group.description.model &&
           other.description.ranks < group.description.ranks && IsLargeFor(other, shape);
  });
}

double GroupCapacity::Throughput(const std::string& model) const {
  double ready = 0, promised = 0;
  for (const auto& [id, group] : groups_.all()) {
    if (group.description.model != model || group.draining) continue;
    const double speed = 1 / group.speed.SecondsPerFlop();
    promised += speed;
    if (group.ready) ready += speed;
  }
  return ready > 0 ? ready : promised;
}

absl::Duration GroupCapacity::LeastJobTime(const ShapeClass& shape, int32_t steps, int32_t tasks) const {
  const double flops = tasks * (steps * control::StepFlops(CostOf(shape.model), shape.work()) + CodecFlops(shape));
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [id, group] : groups_.all()) {
    if (group.description.model != shape.model || !Fits(group, shape, 1)) continue;
    least = std::min(least, group.LeastSeconds(shape, flops));
  }
  return std::isinf(least) ? absl::ZeroDuration() : absl::Seconds(least);
}

absl::Duration GroupCapacity::LeastTimeInFlight(GroupId id) const {
  const ScheduledGroup* group = groups_.Find(id);
  double seconds = 0;
  if (group == nullptr) return absl::ZeroDuration();
  for (const StepsInFlight& steps : group->in_flight) {
    seconds += group->LeastSeconds(steps.shape, steps.count * steps.flops);
  }
  return absl::Seconds(seconds);
}

}  // namespace tessera::server
