// How a group of ranks shares the work of one image, as the user writes it: "cfg=2,ulysses=2",
// "pipe=2,patches=4,warmup=1", "serial". What is valid for a model is decided here, from a few numbers of the model,
// before any weight is read. Pure, free of LibTorch.
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
  MeshShape mesh;   // data stays 1: replicas are other groups
  int patches = 1;  // PipeFusion's, of the image
  // Steps at the start of a job in which the whole image goes through the stages; absent: all of them. Later steps go
  // patch by patch and read keys and values of the step before.
  std::optional<int> warmup;

  bool operator==(const Layout&) const = default;
  int ranks() const { return static_cast<int>(NumRanks(mesh)); }

  // Whether the result is the serial image. One patch is the whole image.
  bool lossless() const { return patches == 1 || !warmup; }
};

// Whether the result of a job with so many steps is the serial image: of a few steps all may be warm-up.
bool IsLossless(const Layout& layout, int steps);

// "cfg=2,pipe=2,ring=2,ulysses=2,tensor=2,patches=4,warmup=1" or "…,warmup=all", in any order, each at most once; what
// is left out is 1, for warmup "all". "serial" alone is all ones. Spaces around names and numbers are allowed. Errors:
// InvalidArgument with the text, the part of it that is wrong, and what is valid.
absl::StatusOr<Layout> ParseLayout(const std::string& text);

// The canonical text: fixed order, ones left out, as is "warmup=all"; "serial" if nothing is left. Parses to `layout`.
std::string LayoutText(const Layout& layout);

// What of a model decides which layouts are valid. Zeros in the last four: unknown, so not checked.
struct LayoutModel {
  int heads = 1;               // of attention
  int blocks = 1;              // of the transformer
  int max_cfg_branches = 1;    // guidance branches computed in a step: 2 where requests can be guided
  int usual_cfg_branches = 1;  // of a request without options: ranks of cfg for more have no work
  int64_t mlp_width = 0;       // hidden features of a block's MLP
  uint64_t block_bytes = 0;    // weights of all blocks
  uint64_t other_bytes = 0;    // weights that every rank holds
  uint64_t memory_bytes = 0;   // for weights, of each rank
};

// Weights on a rank of `layout`, in the largest stage if blocks are alike and dealt out evenly.
uint64_t WeightBytes(const Layout& layout, const LayoutModel& model);

// What is known of the place where the layout is to run.
struct LayoutPlace {
  std::optional<int> ranks;  // processes or devices: the layout must use all of them
  std::optional<int> steps;  // of the job
};

// The structural check: ok, or InvalidArgument with the reason and the nearest valid layouts (same number of ranks,
// fewest changes first, five at most).
absl::Status CheckLayout(const Layout& layout, const LayoutModel& model, const LayoutPlace& place = {});

// Those layouts. Empty if the model has none for that number of ranks.
std::vector<Layout> NearestLayouts(const Layout& layout, const LayoutModel& model, const LayoutPlace& place = {});

// A valid, lossless layout: guidance branches first, then Ulysses as far as heads allow, ring for what remains;
// pipeline stages only if the weights do not fit otherwise. Ranks reach each other faster within blocks of `near` that
// follow one another, a divisor of them (nullopt: all alike): Ulysses, which waits for all of its ranks, stays within a
// block, and the ring, which sends while it computes, goes across. InvalidArgument if there is none.
absl::StatusOr<Layout> AutoLayout(int ranks, const LayoutModel& model, std::optional<int> near = std::nullopt);

// Every lossless layout of `ranks` ranks, each factorisation over the five axes once, in a fixed order. 1 … kMaxRanks.
std::vector<Layout> AllLayouts(int ranks);

struct JudgedLayout {
  Layout layout;
  absl::Status verdict;  // ok, or InvalidArgument with the reason alone
};
std::vector<JudgedLayout> JudgeLayouts(int ranks, const LayoutModel& model);

}  // namespace tessera::parallel
