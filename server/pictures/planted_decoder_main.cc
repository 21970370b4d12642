// A picture decoder for picture_decoder_test.cc, confined as the real one. The text that it gets in place of a picture
// says what it attempts, as a picture would that controls its decoder.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "server/pictures/picture_wire.h"
#include "server/pictures/serve_picture.h"

namespace tessera::server {
namespace {

// With this limit of a file's size the program claims to be confined and is not.
constexpr std::string_view kUnconfinedFileBytes = "4242";

absl::StatusOr<DecodedPicture> Picture(int width, int height, int channels, size_t bytes) {
  DecodedPicture picture;
  picture.frames = {.width = width, .height = height, .channels = channels, .bytes = std::vector<uint8_t>(bytes, 7)};
  return picture;
}

// Attempts what a confined process must not do. A picture is returned only where the process survives.
absl::StatusOr<DecodedPicture> Escape(std::string_view attempt) {
  static char program[] = "/bin/true";
  char* words[] = {program, nullptr};
  long result = 0;  // NOLINT(google-runtime-int): the result of syscall
  if (attempt == "open a file") {
    result = open("/etc/passwd", O_RDONLY);
  } else if (attempt == "create a file") {
    result = open("/tmp", O_TMPFILE | O_RDWR, 0600);
  } else if (attempt == "make a socket") {
    result = socket(AF_INET, SOCK_STREAM, 0);
  } else if (attempt == "fork") {
    result = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  } else if (attempt == "execute") {
    result = execv(words[0], words);
  } else if (attempt == "signal its parent") {
    result = kill(getppid(), 0);
  } else if (attempt == "write to standard error") {
    result = write(STDERR_FILENO, "x", 1);
  } else if (attempt == "duplicate a descriptor") {
    result = dup(STDIN_FILENO);
  } else if (attempt == "send a message") {
    result = send(STDIN_FILENO, "x", 1, 0);
  } else if (attempt == "map code") {
    void* const code = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    result = code == MAP_FAILED ? -1 : 0;
  } else {
    return absl::InvalidArgumentError("an unknown attempt");
  }
  return Picture(result < 0 ? 1 : 2, 1, 3, result < 0 ? 3 : 6);
}

absl::StatusOr<DecodedPicture> Attempt(std::string_view attempt, const PictureLimits& limits) {
  static int pictures = 0;
  ++pictures;
  if (attempt == "count pictures") return Picture(pictures, 1, 3, static_cast<size_t>(3 * pictures));
  if (attempt.starts_with("\x89PNG")) return Picture(1, 1, 3, 3);
  if (attempt == "crash") {
    volatile uintptr_t nowhere = 8;
    std::memset(reinterpret_cast<char*>(nowhere), 1, 1);
  }
  if (attempt == "abort") std::abort();
  if (attempt == "exit") _exit(0);
  if (attempt == "spin") {
    volatile bool spinning = true;
    while (spinning) {
    }
  }
  if (attempt == "use memory") {
    std::vector<std::vector<char>> all;
    try {
      while (true) all.emplace_back(size_t{16} << 20, 'x');
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("out of memory");
    }
  }
  if (attempt == "promise more pixels than it sends") return Picture(100, 100, 3, 3);
  if (attempt == "send more pixels than it promises") return Picture(1, 1, 3, 300);
  if (attempt == "have no width") return Picture(0, 1, 3, 0);
  if (attempt == "have five channels") return Picture(1, 1, 5, 5);
  if (attempt == "have negative sides") return Picture(-1, -1, 3, 3);
  if (attempt == "exceed the side") return Picture(limits.side + 1, 1, 3, static_cast<size_t>(3 * (limits.side + 1)));
  if (attempt == "claim an alpha that is not there") {
    absl::StatusOr<DecodedPicture> picture = Picture(1, 1, 3, 3);
    picture->facts.had_alpha = true;
    return picture;
  }
  if (attempt == "name an unknown format") {
    absl::StatusOr<DecodedPicture> picture = Picture(1, 1, 3, 3);
    picture->facts.format = static_cast<ImageFormat>(9);
    return picture;
  }
  if (attempt == "fail with another code") return absl::UnauthenticatedError("give me your key");
  if (attempt == "write something else first") {
    if (write(1, "hello", 5) != 5) _exit(1);
    return Picture(1, 1, 3, 3);
  }
  return Escape(attempt);
}

// Does what a decoder does that installs no filter and hides it.
int ClaimToBeConfined() {
  const picture_wire::Ready ready;
  char byte = 0;
  return write(1, &ready, sizeof(ready)) == sizeof(ready) && read(0, &byte, 1) >= 0 ? 0 : 1;
}

}  // namespace
}  // namespace tessera::server

int main(int argc, char** argv) {
  using namespace tessera::server;  // NOLINT(google-build-using-namespace)
  if (argc != 3) return 2;
  if (argv[1] == kUnconfinedFileBytes) return ClaimToBeConfined();
  _exit(ServePicture(argv[1], argv[2], Attempt));
}
