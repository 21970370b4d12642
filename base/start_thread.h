// Threads of this program's processes.
//
// One that cannot be started, because a limit of processes and threads is reached, ends the process at once with an
// error on standard error that names the limit. Whoever starts one is in the middle of making something that others
// rely on: without its thread a server would look healthy, do nothing and not even end.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

namespace tessera::base {

// The exit code of a process that ends so: that of a device or memory that is not available.
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
