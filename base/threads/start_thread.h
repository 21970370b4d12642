// Starts threads in this program's processes.
//
// If a thread cannot be started because a limit of processes and threads is reached, the process ends at once with a
// message on standard error that names the limit. The caller is creating something that other code relies on: without
// its thread a server would look healthy, do nothing and not even end.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

namespace tessera::base {

// Exit code if a thread cannot be started; the same as for a device or memory that is not available.
inline constexpr int kNoThreadExitCode = 4;

[[noreturn]] void EndWithoutThread(const std::error_code& error);

template <typename Run>
std::thread StartThread(Run&& run) {
  try {
    return std::thread(std::forward<Run>(run));
  } catch (const std::system_error& error) {
    EndWithoutThread(error.code());
  }
}

}  // namespace tessera::base
