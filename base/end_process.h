// The end of a program that has nothing left to do.
#pragma once

#include <cstdio>
#include <cstdlib>

namespace tessera::base {

// Writes what streams still hold and ends the process, without the destructors of static objects: those of LibTorch and
// gRPC alone take a tenth of a second, in which somebody waits for the process, and all they give back the kernel takes
// by itself. Handlers of std::at_quick_exit run. A build with a sanitizer ends as usual, for what its own handlers
// find.
[[noreturn]] inline void EndProcess(int code) {
  std::fflush(nullptr);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(code);
#else
  std::quick_exit(code);
#endif
}

}  // namespace tessera::base
