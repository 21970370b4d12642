// The memory of one fake card: how much of it each process has taken. Processes that name the same file share the card;
// what a process had is free again when it has ended, however it ended.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <mutex>
#include <string>

namespace tessera::fake_cuda {

// May be used by several threads.
class CardMemory final {
 public:
  // An empty `file`: this process has the card to itself.
  CardMemory(const std::string& file, size_t bytes);
  CardMemory(const CardMemory&) = delete;
  CardMemory& operator=(const CardMemory&) = delete;

  // False where the card has no such room.
  bool Take(size_t bytes);
  void GiveBack(size_t bytes);
  size_t FreeBytes();

 private:
  static constexpr int kMostProcesses = 64;
  struct Share {
    pid_t process;  // 0: nobody's
    size_t bytes;
  };

  void Open();
  // Of this process; those of processes that have ended are emptied. The file is locked.
  Share& Own();
  size_t Used() const;

  const std::string file_;
  const size_t bytes_;
  std::mutex mutex_;
  int descriptor_ = -1;
  pid_t process_ = 0;  // that holds the lock of its share
  Share alone_ = {};
  Share* shares_ = nullptr;  // in the file's memory
};

}  // namespace tessera::fake_cuda
