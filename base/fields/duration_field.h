// The kind of a described struct's field (base/fields/fields.h) that is an absl::Duration: valid values are above 0.
#pragma once

#include "absl/time/time.h"
#include "base/fields/fields.h"

namespace tessera::base {

struct Duration {};

template <>
struct KindOf<absl::Duration> {
  using Type = Duration;
};

}  // namespace tessera::base
