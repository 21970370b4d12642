// Layout describes how a group of ranks shares the work of one image, as the user writes it: "cfg=2,ulysses=2",
// "pipe=2,patches=4,warmup=1", "serial". Validity for a model is decided here from a few numbers of the model, before
// any weight is read. Pure; does not use LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/plan/mesh.h"

namespace tessera::parallel {

inline constexpr int kMaxRanks = 8;     // of one group
inline constexpr int kMaxPatches = 64;  // of one image

struct Layout {
  MeshShape mesh;   // data is always 1: replicas are separate groups
  int patches = 1;  // of the image, for PipeFusion
  // Number of steps at the start of a job in which the whole image passes through the stages; absent: all steps. Later
  // steps process patch by patch and read keys and values of the previous step.
  std::optional<int> warmup;

  bool operator==(const Layout&) const = default;
  int ranks() const { return static_cast<int>(NumRanks(mesh)); }

  // Whether the result equals the serial image. One patch is the whole image.
  bool lossless() const { return patches == 1 || !warmup; }
};

// Returns whether the result of a job with this number of steps equals the serial image. In a short job every step may
// be warm-up.
bool IsLossless(const Layout& layout, int steps);

// Parses "cfg=2,pipe=2,ring=2,ulysses=2,tensor=2,patches=4,warmup=1" or "…,warmup=all", in any order, each field at
// most once. Omitted fields are 1, and "all" for warmup. "serial" alone means all ones. Spaces around names and numbers
// are allowed. Returns InvalidArgument with the text, the invalid part of it, and what is valid.
absl::StatusOr<Layout> ParseLayout(const std::string& text);

// Returns the canonical text, which parses to `layout`: in fixed order without ones and "warmup=all"; "serial" if
// nothing remains.
std::string LayoutText(const Layout& layout);

// The properties of a model that decide which layouts are valid. Zero in the last four means unknown and not checked.
struct LayoutModel {
  int heads = 1;               // of attention
  int blocks = 1;              // of the transformer
  int max_cfg_branches = 1;    // guidance branches computed in a step: 2 if requests can be guided
  int usual_cfg_branches = 1;  // of a request without options: further ranks of cfg have no work
  int64_t mlp_width = 0;       // hidden features of a block's MLP
  uint64_t block_bytes = 0;    // weights of all blocks
  uint64_t other_bytes = 0;    // weights that every rank holds
  uint64_t memory_bytes = 0;   // for weights, on each rank
  int distilled_steps = 0;     // of an image, if the model is distilled to few steps; 0: it is not
};

// Returns whether the model is distilled to so few steps that PipeFusion does not apply: its warm-up, in which the
// whole image passes through the stages, would be most of them, and the others are too far apart to reuse keys and
// values.
bool HasFewSteps(const LayoutModel& model);

// Returns the bytes of weights on a rank of `layout`, for the largest stage, assuming equal blocks distributed evenly.
uint64_t WeightBytes(const Layout& layout, const LayoutModel& model);

// What is known about where the layout will run.
struct LayoutPlace {
  std::optional<int> ranks;  // processes or devices; the layout must use all of them
  std::optional<int> steps;  // of the job
};

// Checks the structure. Returns InvalidArgument with the reason and the nearest valid layouts: those with the same
// number of ranks, fewest changes first, at most five.
absl::Status CheckLayout(const Layout& layout, const LayoutModel& model, const LayoutPlace& place = {});

// Returns the layouts that CheckLayout suggests. Empty if the model has none for that number of ranks.
std::vector<Layout> NearestLayouts(const Layout& layout, const LayoutModel& model, const LayoutPlace& place = {});

// Returns a valid, lossless layout: guidance branches first, then Ulysses as far as the heads allow, and ring for the
// rest; pipeline stages only if the weights do not fit otherwise. `near`, a divisor of `ranks`, is the size of blocks
// of consecutive ranks with fast connections (nullopt: all connections are equal). Ulysses, which waits for all of its
// ranks, stays within a block; the ring, which sends while it computes, crosses blocks. Returns InvalidArgument if
// there is none.
absl::StatusOr<Layout> AutoLayout(int ranks, const LayoutModel& model, std::optional<int> near = std::nullopt);

// Returns every lossless layout of `ranks` ranks, 1 … kMaxRanks: each factorisation over the five axes once, in a fixed
// order.
std::vector<Layout> AllLayouts(int ranks);

struct JudgedLayout {
  Layout layout;
  absl::Status verdict;  // ok, or InvalidArgument with only the reason
};
std::vector<JudgedLayout> JudgeLayouts(int ranks, const LayoutModel& model);

}  // namespace tessera::parallel
