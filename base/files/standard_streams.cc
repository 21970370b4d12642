#include "base/files/standard_streams.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace tessera::base {
namespace {

bool HasNoReader() {
  pollfd output = {.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&output, 1, 0) == 1 && (output.revents & POLLERR) != 0;
}

// Returns whether output to standard output was lost, and reports it on standard error.
bool HasLostOutput() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  const int reason = flushed ? 0 : errno;
  if ((flushed && std::ferror(stdout) == 0) || reason == EPIPE || HasNoReader()) return false;
  std::fprintf(stderr, "%s: standard output cannot be written%s%s\n", program_invocation_short_name,
               reason == 0 ? "" : ": ", reason == 0 ? "" : std::strerror(reason));
  return true;
}

}  // namespace

void OpenStandardStreams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) != -1 || errno != EBADF) continue;
    // open() returns the lowest free number, which is this one.
    open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

void Announce(std::string_view line) {
  const std::string text = std::string(line) + "\n";
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
}

void EndProcess(int code, int lost) {
  if (HasLostOutput() && code == 0) code = lost;
  std::fflush(nullptr);
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  std::exit(code);
#else
  std::quick_exit(code);
#endif
}

}  // namespace tessera::base
