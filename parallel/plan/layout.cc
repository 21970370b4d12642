#include "parallel/plan/layout.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace tessera::parallel {
namespace {

constexpr size_t kMaxNearest = 5;
constexpr int kFewSteps = 10;

std::vector<int> Divisors(int value) {
  std::vector<int> divisors;
  for (int d = 1; d <= value; ++d) {
    if (value % d == 0) divisors.push_back(d);
  }
  return divisors;
}

std::vector<int> DivisorsFalling(int value) {
  std::vector<int> divisors = Divisors(value);
  std::ranges::reverse(divisors);
  return divisors;
}

// Returns the divisors of `heads` up to the largest number of ranks in a group.
std::string ValidDegrees(int heads) {
  std::vector<int> degrees = Divisors(heads);
  std::erase_if(degrees, [](int degree) { return degree > kMaxRanks; });
  return absl::StrJoin(degrees, ", ");
}

std::string Gibibytes(uint64_t bytes) {
  return absl::StrCat(std::floor(static_cast<double>(bytes) * 100 / static_cast<double>(uint64_t{1} << 30)) / 100,
                      " GiB");
}

// Returns the error in a layout, or an empty string.
std::string Fault(const Layout& layout, const LayoutModel& model, const LayoutPlace& place) {
  const MeshShape& mesh = layout.mesh;
  for (const Axis axis : kAllAxes) {
    if (mesh[axis] < 1 || mesh[axis] > kMaxRanks) {
      return absl::StrCat(std::string(AxisName(axis)), " is ", mesh[axis], "; valid values are 1 to ", kMaxRanks);
    }
  }
  if (layout.patches < 1 || layout.patches > kMaxPatches) {
    return absl::StrCat("patches is ", layout.patches, "; valid values are 1 to ", kMaxPatches);
  }
  if (layout.warmup && *layout.warmup < 1) {
    return absl::StrCat("warmup is ", *layout.warmup, "; valid values are 1 or more, or all");
  }
  const int64_t ranks = NumRanks(mesh);
  if (ranks > kMaxRanks) return absl::StrCat("it needs ", ranks, " ranks; a group has at most ", kMaxRanks);
  if (place.ranks && ranks != *place.ranks) {
    return absl::StrCat("it needs ", ranks, ranks == 1 ? " rank" : " ranks", ", but there ",
                        *place.ranks == 1 ? "is " : "are ", *place.ranks);
  }
  const int branches = std::min(model.max_cfg_branches, 2);
  if (mesh.cfg > branches) {
    return absl::StrCat("cfg is ", mesh.cfg, ", but ",
                        branches == 2 ? "guidance has two branches to share; valid values are 1, 2"
                                      : "the model has one branch without guidance; valid values are 1");
  }
  if (model.heads % mesh.tensor != 0) {
    return absl::StrCat("tensor is ", mesh.tensor, ", which does not divide the model's ", model.heads,
                        " heads; valid values are ", ValidDegrees(model.heads));
  }
  if (model.mlp_width % mesh.tensor != 0) {
    return absl::StrCat("tensor is ", mesh.tensor, ", which does not divide the ", model.mlp_width,
                        " features of the model's MLP; valid values are ",
                        ValidDegrees(static_cast<int>(std::gcd(model.mlp_width, int64_t{model.heads}))));
  }
  if (model.heads % (mesh.ulysses * mesh.tensor) != 0) {
    return absl::StrCat("ulysses is ", mesh.ulysses, ", which does not divide the ", model.heads / mesh.tensor,
                        mesh.tensor == 1 ? " heads of the model" : " heads that tensor leaves to a rank",
                        "; valid values are ", ValidDegrees(model.heads / mesh.tensor), " (ring may have any degree)");
  }
  if (mesh.pipe > model.blocks) {
    return absl::StrCat("pipe is ", mesh.pipe, ", but the model has ", model.blocks,
                        model.blocks == 1 ? " block" : " blocks", "; valid values are 1 to ", model.blocks);
  }
  const bool by_patch = layout.warmup && (!place.steps || *layout.warmup < *place.steps);
  if (by_patch && layout.patches < mesh.pipe) {
    return absl::StrCat("patches is ", layout.patches, ", fewer than the ", mesh.pipe,
                        " stages, so stages would be idle; valid values are ", mesh.pipe, " to ", kMaxPatches,
                        ", or warmup=all");
  }
  if (by_patch && layout.patches > 1 && HasFewSteps(model)) {
    return absl::StrCat(
        "warmup is ", *layout.warmup, ", and PipeFusion is not for a model that is distilled to ",
        model.distilled_steps, model.distilled_steps == 1 ? " step" : " steps",
        ", of which its warm-up would be most; valid values are warmup=all, or layouts without patches");
  }
  const uint64_t bytes = WeightBytes(layout, model);
  if (model.memory_bytes > 0 && bytes > model.memory_bytes) {
    return absl::StrCat("a rank would hold ", Gibibytes(bytes), " of weights, and has ", Gibibytes(model.memory_bytes),
                        " for them");
  }
  return "";
}

// Returns the number of ranks of the layouts to suggest for `layout`, whose sizes may be arbitrary.
int RanksToFill(const Layout& layout, const LayoutPlace& place) {
  int64_t ranks = 1;
  for (const Axis axis : kAllAxes) ranks *= std::clamp(layout.mesh[axis], 1, kMaxRanks);
  return static_cast<int>(std::clamp<int64_t>(place.ranks.value_or(ranks), 1, kMaxRanks));
}

// Returns the valid layout on `mesh` that preserves the most of the other requested fields.
std::optional<Layout> Adapted(const MeshShape& mesh, const Layout& wanted, const LayoutModel& model,
                              const LayoutPlace& place) {
  std::vector<Layout> candidates;
  if (mesh.pipe == 1 && wanted.mesh.pipe > 1) {
    candidates = {Layout{.mesh = mesh}};
  } else {
    const int patches = std::clamp(wanted.patches, 1, kMaxPatches);
    const std::optional<int> warmup = wanted.warmup ? std::optional(std::max(*wanted.warmup, 1)) : std::nullopt;
    candidates = {Layout{mesh, patches, warmup}, Layout{mesh, std::max(patches, mesh.pipe), warmup}};
    if (HasFewSteps(model)) candidates.push_back({.mesh = mesh});
  }
  for (const Layout& candidate : candidates) {
    if (Fault(candidate, model, place).empty()) return candidate;
  }
  return std::nullopt;
}

// The size of a change: fields first, then factors.
std::pair<int, double> Distance(const Layout& a, const Layout& b) {
  int fields = (a.patches != b.patches) + (a.warmup != b.warmup);
  double factor = 1;
  for (const Axis axis : kAllAxes) {
    fields += a.mesh[axis] != b.mesh[axis];
    factor *=
        static_cast<double>(std::max(a.mesh[axis], b.mesh[axis])) / std::max(1, std::min(a.mesh[axis], b.mesh[axis]));
  }
  return {fields, factor};
}

}  // namespace

bool HasFewSteps(const LayoutModel& model) { return model.distilled_steps > 0 && model.distilled_steps <= kFewSteps; }

bool IsLossless(const Layout& layout, int steps) { return layout.lossless() || *layout.warmup >= steps; }

uint64_t WeightBytes(const Layout& layout, const LayoutModel& model) {
  // A stage has whole blocks, and each block's matrices are sharded.
  const uint64_t blocks = static_cast<uint64_t>(std::max(model.blocks, 1));
  const uint64_t stages = static_cast<uint64_t>(layout.mesh.pipe);
  const uint64_t of_largest = (blocks + stages - 1) / stages;
  const uint64_t of_stage = model.block_bytes / blocks * of_largest + model.block_bytes % blocks * of_largest / blocks;
  return model.other_bytes + of_stage / static_cast<uint64_t>(layout.mesh.tensor);
}

std::vector<Layout> NearestLayouts(const Layout& layout, const LayoutModel& model, const LayoutPlace& place) {
  std::vector<Layout> nearest;
  for (const Layout& candidate : AllLayouts(RanksToFill(layout, place))) {
    if (const auto adapted = Adapted(candidate.mesh, layout, model, place)) nearest.push_back(*adapted);
  }
  std::ranges::stable_sort(nearest, {}, [&](const Layout& candidate) { return Distance(layout, candidate); });
  if (nearest.size() > kMaxNearest) nearest.resize(kMaxNearest);
  return nearest;
}

absl::Status CheckLayout(const Layout& layout, const LayoutModel& model, const LayoutPlace& place) {
  const std::string fault = Fault(layout, model, place);
  if (fault.empty()) return absl::OkStatus();
  const int ranks = RanksToFill(layout, place);
  const std::vector<Layout> nearest = NearestLayouts(layout, model, place);
  const std::string with = absl::StrCat(" with ", ranks, ranks == 1 ? " rank" : " ranks");
  return absl::InvalidArgumentError(
      absl::StrCat("layout ", LayoutText(layout), ": ", fault, ". ",
                   nearest.empty() ? absl::StrCat("No layout is valid", with)
                                   : absl::StrCat("Nearest valid", with, ": ",
                                                  absl::StrJoin(nearest, "; ", [](std::string* out, const Layout& l) {
                                                    absl::StrAppend(out, LayoutText(l));
                                                  }))));
}

absl::StatusOr<Layout> AutoLayout(int ranks, const LayoutModel& model, std::optional<int> near) {
  if (ranks < 1 || ranks > kMaxRanks) {
    return absl::InvalidArgumentError(absl::StrCat("the number of ranks is ", ranks, "; valid values are 1 to ",
                                                   kMaxRanks, ", the nearest is ", std::clamp(ranks, 1, kMaxRanks)));
  }
  std::string fault;
  // Memory may require so many stages that no ranks are left for guidance.
  for (const int cfg : model.usual_cfg_branches > 1 && ranks % 2 == 0 ? std::vector<int>{2, 1} : std::vector<int>{1}) {
    for (const int pipe : Divisors(ranks / cfg)) {
      const int rest = ranks / cfg / pipe;
      const int ulysses = std::gcd(std::gcd(rest, model.heads), near.value_or(rest));
      const Layout layout = {.mesh = {.cfg = cfg, .pipe = pipe, .ring = rest / ulysses, .ulysses = ulysses}};
      fault = Fault(layout, model, {});
      if (fault.empty()) return layout;
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat("no layout of ", ranks, " ranks is found for the model: with the most stages, ", fault));
}

std::vector<Layout> AllLayouts(int ranks) {
  std::vector<Layout> layouts;
  // Ordered by preference for the use of ranks, stages last.
  for (const int cfg : DivisorsFalling(ranks)) {
    for (const int ulysses : DivisorsFalling(ranks / cfg)) {
      for (const int ring : DivisorsFalling(ranks / cfg / ulysses)) {
        for (const int tensor : DivisorsFalling(ranks / cfg / ulysses / ring)) {
          const int pipe = ranks / cfg / ulysses / ring / tensor;
          layouts.push_back({.mesh = {.cfg = cfg, .pipe = pipe, .ring = ring, .ulysses = ulysses, .tensor = tensor}});
        }
      }
    }
  }
  return layouts;
}

std::vector<JudgedLayout> JudgeLayouts(int ranks, const LayoutModel& model) {
  std::vector<JudgedLayout> judged;
  for (const Layout& layout : AllLayouts(ranks)) {
    const std::string fault = Fault(layout, model, {.ranks = ranks});
    judged.push_back({layout, fault.empty() ? absl::OkStatus() : absl::InvalidArgumentError(fault)});
  }
  return judged;
}

}  // namespace tessera::parallel
