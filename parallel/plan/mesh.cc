#include "parallel/plan/mesh.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace tessera::parallel {

absl::string_view AxisName(Axis axis) {
  static constexpr std::array<const char*, kAxes> kNames = {"data", "cfg", "pipe", "ring", "ulysses", "tensor"};
  return kNames[static_cast<size_t>(axis)];
}

int64_t NumRanks(const MeshShape& shape) {
  int64_t ranks = 1;
  for (const Axis axis : kAllAxes) ranks *= shape[axis];
  return ranks;
}

absl::StatusOr<Mesh> Mesh::Create(const MeshShape& shape, int world_size) {
  if (world_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of ranks is ", world_size, "; valid values are 1 or more"));
  }
  int64_t ranks = 1;
  std::string sizes;
  for (const Axis axis : kAllAxes) {
    if (shape[axis] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat(std::string(AxisName(axis)), " is ", shape[axis], "; valid values are 1 or more"));
    }
    if (ranks <= world_size) ranks *= shape[axis];  // once larger, it stays larger
    if (shape[axis] > 1)
      absl::StrAppend(&sizes, sizes.empty() ? "" : " x ", std::string(AxisName(axis)), "=", shape[axis]);
  }
  if (ranks != world_size) {
    return absl::InvalidArgumentError(absl::StrCat("a mesh of ", sizes.empty() ? "all ones" : sizes, " has ",
                                                   ranks > world_size ? "more" : "fewer", " ranks than the ",
                                                   world_size, " available"));
  }
  Mesh mesh;
  mesh.shape_ = shape;
  mesh.world_size_ = world_size;
  return mesh;
}

MeshCoords Mesh::Coords(int rank) const {
  assert(rank >= 0 && rank < world_size_);
  MeshCoords coords;
  for (auto axis = kAllAxes.rbegin(); axis != kAllAxes.rend(); ++axis) {
    coords[*axis] = rank % shape_[*axis];
    rank /= shape_[*axis];
  }
  return coords;
}

int Mesh::Coord(int rank, Axis axis) const { return Coords(rank)[axis]; }

int Mesh::RankOf(const MeshCoords& coords) const {
  int rank = 0;
  for (const Axis axis : kAllAxes) {
    assert(coords[axis] >= 0 && coords[axis] < shape_[axis]);
    rank = rank * shape_[axis] + coords[axis];
  }
  return rank;
}

std::vector<int> Mesh::Group(int rank, std::initializer_list<Axis> axes) const {
  const MeshCoords own = Coords(rank);
  std::vector<int> group;
  for (int other = 0; other < world_size_; ++other) {
    const MeshCoords coords = Coords(other);
    const bool same = std::ranges::all_of(
        kAllAxes, [&](Axis axis) { return coords[axis] == own[axis] || std::ranges::find(axes, axis) != axes.end(); });
    if (same) group.push_back(other);
  }
  return group;
}

}  // namespace tessera::parallel
