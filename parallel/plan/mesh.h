// A mesh arranges ranks in a grid with one axis for each kind of parallelism. Pure arithmetic.
//
// Axes are ordered from outer to inner, so that the ranks that communicate most are neighbours: rank = (((data ·
// cfg_size + cfg) · pipe_size + pipe) · …) · tensor_size + tensor.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::parallel {

enum class Axis : uint8_t { kData, kCfg, kPipe, kRing, kUlysses, kTensor };

inline constexpr int kAxes = 6;
inline constexpr std::array<Axis, kAxes> kAllAxes = {Axis::kData, Axis::kCfg,     Axis::kPipe,
                                                     Axis::kRing, Axis::kUlysses, Axis::kTensor};

// Returns "data", "cfg", …, as in the text of a layout.
absl::string_view AxisName(Axis axis);

// One number per axis: its size, or a rank's coordinate on it.
template <int initial>
struct PerAxis {
  int data = initial;
  int cfg = initial;
  int pipe = initial;
  int ring = initial;
  int ulysses = initial;
  int tensor = initial;

  int& operator[](Axis axis);
  int operator[](Axis axis) const { return const_cast<PerAxis&>(*this)[axis]; }
  bool operator==(const PerAxis&) const = default;
};

template <int initial>
int& PerAxis<initial>::operator[](Axis axis) {
  switch (axis) {
    case Axis::kData:
      return data;
    case Axis::kCfg:
      return cfg;
    case Axis::kPipe:
      return pipe;
    case Axis::kRing:
      return ring;
    case Axis::kUlysses:
      return ulysses;
    case Axis::kTensor:
      break;
  }
  return tensor;
}

using MeshShape = PerAxis<1>;
using MeshCoords = PerAxis<0>;

// Returns the number of ranks in the shape. Sizes must be at least 1 and so small that the product fits.
int64_t NumRanks(const MeshShape& shape);

// Immutable. Ranks and coordinates passed to it must be within the mesh.
class Mesh {
 public:
  // A mesh of one rank.
  Mesh() = default;

  // Returns InvalidArgument unless every size is at least 1 and their product is `world_size`.
  static absl::StatusOr<Mesh> Create(const MeshShape& shape, int world_size);

  const MeshShape& shape() const { return shape_; }
  int world_size() const { return world_size_; }
  int size(Axis axis) const { return shape_[axis]; }

  int Coord(int rank, Axis axis) const;
  MeshCoords Coords(int rank) const;
  int RankOf(const MeshCoords& coords) const;

  // Returns the ranks that differ from `rank` only in their coordinate on `axis` (or on `axes`), ascending. Includes
  // `rank`, for one axis at index Coord(rank, axis).
  std::vector<int> Group(int rank, Axis axis) const { return Group(rank, {axis}); }
  std::vector<int> Group(int rank, std::initializer_list<Axis> axes) const;

 private:
  MeshShape shape_;
  int world_size_ = 1;
};

}  // namespace tessera::parallel
