// Limits of the commands about jobs (control/protocol/job_commands.h).
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera::control {

inline constexpr size_t kMaxPromptsAhead = 1024;
inline constexpr int32_t kMaxStepsTogether = 64;
inline constexpr size_t kMaxBatch = 1024;  // jobs

}  // namespace tessera::control
