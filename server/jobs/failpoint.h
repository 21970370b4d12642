// Failpoints are named moments between two writes at which fault tests kill the process.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tessera::server {

// Called with the name of each failpoint that is reached, from any thread.
using AtPoint = std::function<void(absl::string_view)>;

// `at_point` may be empty.
inline void Reach(const AtPoint& at_point, absl::string_view point) {
  if (at_point) at_point(point);
}

// Returns the names of all points of the job store and of the groups' records.
absl::Span<const absl::string_view> Failpoints();

// Kills this process (SIGKILL) when it reaches a failpoint. `text` is "submit.before_commit", or
// "submit.before_commit:3" for the third time. INVALID_ARGUMENT for any other text.
absl::StatusOr<AtPoint> DieAt(const std::string& text);

}  // namespace tessera::server
