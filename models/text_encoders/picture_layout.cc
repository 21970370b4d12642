#include "models/text_encoders/picture_layout.h"

#include <algorithm>

#include "base/macros/planted.h"

namespace tessera::models {

PatchPositions PositionsOfPatches(std::span<const PatchGrid> grids) {
  PatchPositions positions;
  for (const PatchGrid& grid : grids) {
    for (int64_t top = 0; top < grid.rows; top += kMerge) {
      for (int64_t left = 0; left < grid.columns; left += kMerge) {
        for (int64_t patch = 0; patch < kMerge * kMerge; ++patch) {
          positions.rows.push_back(top + patch / kMerge);
          positions.columns.push_back(left + patch % kMerge);
        }
      }
    }
  }
  return positions;
}

VisionWindows WindowsOf(std::span<const PatchGrid> grids, int64_t side) {
  VisionWindows windows;
  int64_t first = 0;
  for (const PatchGrid& grid : grids) {
    const int64_t rows = grid.rows / kMerge, columns = grid.columns / kMerge;
    for (int64_t top = 0; top < rows; top += side) {
      for (int64_t left = 0; left < columns; left += side) {
        const int64_t bottom = std::min(top + side, rows), right = std::min(left + side, columns);
        windows.units.push_back((bottom - top) * (right - left));
        for (int64_t row = top; row < bottom; ++row) {
          for (int64_t column = left; column < right; ++column) windows.order.push_back(first + row * columns + column);
        }
      }
    }
    first += rows * columns;
  }
  return windows;
}

std::array<std::vector<int64_t>, 3> PositionsOfText(std::span<const int64_t> ids, int64_t picture_id,
                                                    std::span<const PatchGrid> grids) {
  std::array<std::vector<int64_t>, 3> axes;
  const auto add = [&](int64_t frame, int64_t row, int64_t column) {
    axes[0].push_back(frame);
    axes[1].push_back(row);
    axes[2].push_back(column);
  };
  int64_t next = 0;
  size_t picture = 0;
  for (size_t token = 0; token < ids.size();) {
    const bool is_text = ids[token] != picture_id || picture == grids.size() || base::Planted("picture_counts_as_text");
    if (is_text) {
      add(next, next, next);
      ++next;
      ++token;
      continue;
    }
    const int64_t rows = grids[picture].rows / kMerge, columns = grids[picture].columns / kMerge;
    for (int64_t unit = 0; unit < rows * columns; ++unit) {
      add(next, next + unit / columns, next + unit % columns);
    }
    token += static_cast<size_t>(rows * columns);
    next += base::Planted("text_after_all_of_a_picture") ? rows * columns : std::max(rows, columns);
    ++picture;
  }
  return axes;
}

}  // namespace tessera::models
