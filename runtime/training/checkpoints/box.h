// A rectangular part of a tensor, in the coordinates of the whole tensor. Arithmetic alone: nothing here knows ranks.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

// Elements [offset, offset + extent) along every dimension. Of a scalar both are empty.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;

  auto operator<=>(const Box&) const = default;

  // The number of elements; 1 for a scalar's.
  int64_t Elements() const;
};

// The box of a whole tensor.
Box WholeBox(const std::vector<int64_t>& shape);

// Whether the box has the tensor's number of dimensions, no negative number, and ends within the tensor.
bool LiesWithin(const Box& box, const std::vector<int64_t>& shape);

// What two boxes of one tensor have in common; nothing if that is no element.
std::optional<Box> Intersect(const Box& a, const Box& b);

// As Python writes a slice: "[0:64, 128:256]"; "[]" for a scalar's.
std::string BoxText(const Box& box);

}  // namespace tessera::runtime
