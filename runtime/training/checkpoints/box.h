// Box is a rectangular part of a tensor, in the coordinates of the whole tensor. Pure arithmetic that does not depend
// on ranks.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::runtime {

// Elements [offset, offset + extent) along every dimension. Both are empty for a scalar.
struct Box {
  std::vector<int64_t> offset;
  std::vector<int64_t> extent;

  auto operator<=>(const Box&) const = default;

  // Returns the number of elements; 1 for a scalar.
  int64_t Elements() const;
};

// Returns the box of a whole tensor.
Box WholeBox(const std::vector<int64_t>& shape);

// Whether the box has the tensor's number of dimensions, no negative number, and ends within the tensor.
bool LiesWithin(const Box& box, const std::vector<int64_t>& shape);

// Returns the intersection of two boxes of one tensor; nothing if it is empty.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Returns the box in Python's slice notation: "[0:64, 128:256]"; "[]" for a scalar.
std::string BoxText(const Box& box);

}  // namespace tessera::runtime
