#include "tests/support/fake_cuda/card_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace tessera::fake_cuda {
namespace {

// A process locks byte 0 of the file to change it, and byte 1 + i for its lifetime while it owns share i.
constexpr off_t kWhole = 0;
off_t ByteOf(int share) { return 1 + share; }

bool Lock(int descriptor, off_t byte, short type, bool wait) {
  struct flock lock = {.l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1, .l_pid = 0};
  return fcntl(descriptor, wait ? F_SETLKW : F_SETLK, &lock) == 0;
}

bool IsLocked(int descriptor, off_t byte) {
  struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1, .l_pid = 0};
  return fcntl(descriptor, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

class FileLock final {
 public:
  explicit FileLock(int descriptor) : descriptor_(descriptor) {
    if (descriptor_ >= 0) Lock(descriptor_, kWhole, F_WRLCK, /*wait=*/true);
  }
  ~FileLock() {
    if (descriptor_ >= 0) Lock(descriptor_, kWhole, F_UNLCK, /*wait=*/false);
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  const int descriptor_;
};

}  // namespace

CardMemory::CardMemory(const std::string& file, size_t bytes) : file_(file), bytes_(bytes) {}

void CardMemory::Open() {
  if (file_.empty() || shares_ != nullptr) return;
  constexpr size_t kBytes = kMostProcesses * sizeof(Share);
  descriptor_ = open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  void* const memory = descriptor_ < 0 || ftruncate(descriptor_, kBytes) != 0
                           ? MAP_FAILED
                           : mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
  if (memory == MAP_FAILED) {
    std::perror(file_.c_str());
    std::abort();
  }
  shares_ = static_cast<Share*>(memory);
}

CardMemory::Share& CardMemory::Own() {
  if (shares_ == nullptr) return alone_;
  Share* own = nullptr;
  for (int i = 0; i < kMostProcesses; ++i) {
    Share& share = shares_[i];
    if (share.process == getpid() && process_ == getpid()) {
      own = &share;
    } else if (share.process != 0 && !IsLocked(descriptor_, ByteOf(i))) {
      share = {};
    }
  }
  for (int i = 0; i < kMostProcesses && own == nullptr; ++i) {
    if (shares_[i].process != 0) continue;
    Lock(descriptor_, ByteOf(i), F_WRLCK, /*wait=*/false);
    process_ = getpid();
    own = &shares_[i];
    *own = {.process = process_, .bytes = 0};
  }
  if (own == nullptr) std::abort();
  return *own;
}

size_t CardMemory::Used() const {
  if (shares_ == nullptr) return alone_.bytes;
  return std::accumulate(shares_, shares_ + kMostProcesses, size_t{0},
                         [](size_t sum, const Share& share) { return sum + share.bytes; });
}

bool CardMemory::Take(size_t bytes) {
  const std::lock_guard lock(mutex_);
  Open();
  const FileLock file(descriptor_);
  Share& own = Own();
  if (Used() + bytes > bytes_) return false;
  own.bytes += bytes;
  return true;
}

void CardMemory::GiveBack(size_t bytes) {
  const std::lock_guard lock(mutex_);
  Open();
  const FileLock file(descriptor_);
  Own().bytes -= bytes;
}

size_t CardMemory::FreeBytes() {
  const std::lock_guard lock(mutex_);
  Open();
  const FileLock file(descriptor_);
  (void)Own();
  const size_t used = Used();
  return used < bytes_ ? bytes_ - used : 0;
}

}  // namespace tessera::fake_cuda
