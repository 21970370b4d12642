// The order and the positions in which Qwen2.5-VL (Bai et al., 2025) reads the patches of pictures and the tokens of a
// text that holds them. Pure functions, free of LibTorch.
//
// A picture is a grid of patches. The merger makes one token, a unit, of each square of kMerge x kMerge patches.
// Patches are in the order of their units, row by row, and row by row in each unit.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace tessera::models {

inline constexpr int64_t kMerge = 2;  // spatial_merge_size

// In patches; both are multiples of kMerge.
struct PatchGrid {
  int64_t rows = 0, columns = 0;

  int64_t patches() const { return rows * columns; }
  int64_t units() const { return patches() / (kMerge * kMerge); }
  bool operator==(const PatchGrid&) const = default;
};

// The row and column of each patch of the grids, one grid after another.
struct PatchPositions {
  std::vector<int64_t> rows, columns;
};
PatchPositions PositionsOfPatches(std::span<const PatchGrid> grids);

// The windows of attention: squares of `side` units, cut from the top left of each picture, the last ones smaller.
struct VisionWindows {
  std::vector<int64_t> order;  // of the units of all pictures, window after window
  std::vector<int64_t> units;  // of each window
};
VisionWindows WindowsOf(std::span<const PatchGrid> grids, int64_t side);

// Returns the positions of a text's tokens on the axes (frame, row, column). Text counts on all axes alike; the units
// of a picture that begins at p have (p, p + row, p + column), and the text goes on at p + max(rows, columns). `ids`
// has `picture_id` for each unit of the grids, in their order.
std::array<std::vector<int64_t>, 3> PositionsOfText(std::span<const int64_t> ids, int64_t picture_id,
                                                    std::span<const PatchGrid> grids);

}  // namespace tessera::models
