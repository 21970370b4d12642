#include "server/api/job.h"

#include <algorithm>

namespace tessera::server {

std::vector<int32_t> PreviewSteps(int32_t steps, int32_t partial_images) {
  const int32_t count = std::min(partial_images, steps - 1);
  std::vector<int32_t> after;
  for (int32_t i = 1; i <= count; ++i) {
    const auto even = static_cast<int32_t>(int64_t{steps} * i / (count + 1));
    after.push_back(std::max(even, after.empty() ? 1 : after.back() + 1));
  }
  return after;
}

std::string JobStateName(JobState state) {
  static constexpr const char* kNames[] = {"queued", "running", "done", "failed", "cancelled"};
  return kNames[static_cast<size_t>(state)];
}

}  // namespace tessera::server
