#include "runtime/training/checkpoints/box.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera::runtime {

int64_t Box::Elements() const {
  int64_t elements = 1;
  for (const int64_t size : extent) elements *= size;
  return elements;
}

Box WholeBox(const std::vector<int64_t>& shape) {
  return {.offset = std::vector<int64_t>(shape.size(), 0), .extent = shape};
}

bool LiesWithin(const Box& box, const std::vector<int64_t>& shape) {
  if (box.offset.size() != shape.size() || box.extent.size() != shape.size()) return false;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (box.offset[i] < 0 || box.extent[i] < 0 || box.extent[i] > shape[i]) return false;
    if (box.offset[i] > shape[i] - box.extent[i]) return false;
  }
  return true;
}

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box common = a;
  for (size_t i = 0; i < a.offset.size(); ++i) {
    common.offset[i] = std::max(a.offset[i], b.offset[i]);
    common.extent[i] = std::min(a.offset[i] + a.extent[i], b.offset[i] + b.extent[i]) - common.offset[i];
    if (common.extent[i] <= 0) return std::nullopt;
  }
  return common;
}

std::string BoxText(const Box& box) {
  std::string text = "[";
  for (size_t i = 0; i < box.offset.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? "" : ", ", box.offset[i], ":", box.offset[i] + box.extent[i]);
  }
  return text + "]";
}

}  // namespace tessera::runtime
