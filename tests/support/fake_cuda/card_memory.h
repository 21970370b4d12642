// Tracks how much memory of one fake card each process has taken. Processes that name the same file share the card. The
// memory of a process is free again as soon as the process has ended, however it ended.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <string>

namespace tessera::fake_cuda {

// Thread-safe.
class CardMemory final {
 public:
  // With an empty `file`, this process has the card to itself.
  CardMemory(const std::string& file, size_t bytes);
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;

  // Returns false if the card does not have that much free memory.
  bool Take(size_t bytes);
  void GiveBack(size_t bytes);
  size_t FreeBytes();

 private:
  static constexpr int kMostProcesses = 64;
  struct Share {
    pid_t process;  // 0: the share is free
    size_t bytes;
  };

  void Open();
  // Returns the share of this process. Also clears the shares of processes that have ended. Requires the file lock.
  Share& Own();
  size_t Used() const;

  const std::string file_;
  const size_t bytes_;
  std::mutex mutex_;
  int descriptor_ = -1;
  pid_t process_ = 0;  // holds the lock of its share
  Share alone_ = {};
  Share* shares_ = nullptr;  // mapped from the file
};

}  // namespace tessera::fake_cuda
