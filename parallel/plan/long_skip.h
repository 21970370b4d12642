// A connection between blocks that are not neighbours.
#pragma once

#include <tuple>

#include "base/fields/fields.h"

namespace tessera::parallel {

// The output of block `from` is kept for block `to` > `from`.
struct LongSkip {
  int from = 0;
  int to = 0;
  bool operator==(const LongSkip&) const = default;
};

constexpr auto FieldsOf(const LongSkip*) {
  constexpr base::Integer kBlock = {0, 1 << 10};
  return std::tuple(base::Field("from", &LongSkip::from, kBlock), base::Field("to", &LongSkip::to, kBlock));
}

}  // namespace tessera::parallel
