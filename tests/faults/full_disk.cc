// This library is loaded with LD_PRELOAD. In the program and its children, no file below $FULL_DISK_FOLDER can grow
// while the file $FULL_DISK exists, as on a full disk. Writes within a file's current size succeed.
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

// Returns the function that would be called without this library.
template <class Function>
Function* Next(Function* /*ours*/, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Returns whether writing up to `end` would make the file grow while the disk is full.
bool IsFull(int file, off_t end) {
  const char* flag = std::getenv("FULL_DISK");
  const char* folder = std::getenv("FULL_DISK_FOLDER");
  if (flag == nullptr || folder == nullptr || access(flag, F_OK) != 0) return false;
  struct stat about = {};
  if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode) || end <= about.st_size) return false;
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  return size > 0 && std::strncmp(path, folder, std::strlen(folder)) == 0;
}

ssize_t Full() {
  errno = ENOSPC;
  return -1;
}

}  // namespace

extern "C" {

ssize_t write(int file, const void* bytes, size_t size) {
  static const auto next = Next(&::write, "write");
  const int error = errno;
  const off_t at = lseek(file, 0, SEEK_CUR);  // fails unless `file` is a seekable file
  errno = error;
  if (at >= 0 && IsFull(file, at + static_cast<off_t>(size))) return Full();
  return next(file, bytes, size);
}

ssize_t pwrite(int file, const void* bytes, size_t size, off_t at) {
  static const auto next = Next(&::pwrite, "pwrite");
  return IsFull(file, at + static_cast<off_t>(size)) ? Full() : next(file, bytes, size, at);
}

ssize_t pwrite64(int file, const void* bytes, size_t size, off64_t at) {
  static const auto next = Next(&::pwrite64, "pwrite64");
  return IsFull(file, at + static_cast<off_t>(size)) ? Full() : next(file, bytes, size, at);
}

int ftruncate(int file, off_t size) noexcept {
  static const auto next = Next(&::ftruncate, "ftruncate");
  return IsFull(file, size) ? static_cast<int>(Full()) : next(file, size);
}

int ftruncate64(int file, off64_t size) noexcept {
  static const auto next = Next(&::ftruncate64, "ftruncate64");
  return IsFull(file, size) ? static_cast<int>(Full()) : next(file, size);
}

}  // extern "C"
