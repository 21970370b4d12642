#include "tests/support/disk_calls.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <filesystem>
#include <map>
#include <mutex>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

namespace tessera {
namespace {

namespace fs = std::filesystem;

template <class Function>
Function* NextOf(Function* /*ours*/, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

struct Disk {
  std::atomic<bool> is_broken = false;
  std::recursive_mutex mutex;  // guards what follows; losing power calls these functions again
  std::string folder;          // empty: no fault
  DiskCallFault fault = DiskCallFault::kError;
  int64_t fault_at = 0, calls = 0;
  std::mt19937_64 random;
  std::map<std::string, off_t> synced;                       // bytes of the files that were written to, by path
  std::vector<std::pair<std::string, std::string>> renames;  // not durable
  std::vector<std::string> new_folders;                      // not durable

  bool Contains(const std::string& path) const {
    return !folder.empty() && (path == folder || path.starts_with(folder + "/"));
  }

  void LosePower() {
    std::error_code error;
    for (const auto& [path, bytes] : synced) {
      const auto size = static_cast<off_t>(fs::file_size(path, error));
      if (error || size <= bytes) continue;
      const off_t left = bytes + static_cast<off_t>(random() % static_cast<uint64_t>(size - bytes + 1));
      if (truncate(path.c_str(), left) != 0) _exit(1);
    }
    for (auto rename = renames.rbegin(); rename != renames.rend(); ++rename) {
      if (random() % 2 == 0) fs::rename(rename->second, rename->first, error);
    }
    for (const std::string& created : new_folders) {
      if (random() % 2 == 0) fs::remove_all(created, error);
    }
  }

  // Returns 0, or the error with which the call fails.
  int Meet() {
    const int64_t call = calls++;
    if (call < fault_at || (call > fault_at && fault != DiskCallFault::kFull)) return 0;
    if (fault == DiskCallFault::kError) return EIO;
    if (fault == DiskCallFault::kFull) return ENOSPC;
    if (fault == DiskCallFault::kPowerCut) {
      folder.clear();
      LosePower();
    }
    kill(getpid(), SIGKILL);
    return EIO;
  }

  void OnRename(const std::string& from, const std::string& to) {
    std::map<std::string, off_t> moved;
    for (const auto& [path, bytes] : synced) {
      const bool moves = path == from || path.starts_with(from + "/");
      moved[moves ? to + path.substr(from.size()) : path] = bytes;
    }
    synced = std::move(moved);
    renames.emplace_back(from, to);
  }

  void OnSync(const std::string& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      synced[path] = static_cast<off_t>(fs::file_size(path, error));
      return;
    }
    const auto is_in = [&](const std::string& name) { return fs::path(name).parent_path() == path; };
    std::erase_if(renames, [&](const auto& rename) { return is_in(rename.second); });
    std::erase_if(new_folders, is_in);
  }
};

Disk& TheDisk() {
  static Disk disk;
  return disk;
}

std::string PathOf(int file) {
  char link[64], path[PATH_MAX];
  std::snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t size = readlink(link, path, sizeof(path));
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "";
}

// Makes a call about the path that `path` returns, unless it is the one that fails, and then calls `after`.
template <class Path, class Call, class After>
auto Met(const Path& path, const Call& call, const After& after) {
  Disk& disk = TheDisk();
  if (!disk.is_broken) return call();
  const std::string about = path();
  std::unique_lock lock(disk.mutex);
  if (!disk.Contains(about)) {
    lock.unlock();
    return call();
  }
  if (const int error = disk.Meet(); error != 0) {
    errno = error;
    return static_cast<decltype(call())>(-1);
  }
  const auto result = call();
  if (result >= 0) after(disk, about);
  return result;
}

}  // namespace

void BreakDisk(const std::string& folder, DiskCallFault fault, int64_t call, uint64_t seed) {
  Disk& disk = TheDisk();
  const std::lock_guard lock(disk.mutex);
  disk.folder = folder;
  disk.fault = fault;
  disk.fault_at = call;
  disk.calls = 0;
  disk.random.seed(seed);
  disk.synced.clear();
  disk.renames.clear();
  disk.new_folders.clear();
  disk.is_broken = true;
}

bool RestoreDisk() {
  Disk& disk = TheDisk();
  const std::lock_guard lock(disk.mutex);
  disk.folder.clear();
  disk.is_broken = false;
  return disk.calls > disk.fault_at;
}

}  // namespace tessera

extern "C" {

ssize_t write(int file, const void* bytes, size_t size) {
  static const auto next = tessera::NextOf(&::write, "write");
  return tessera::Met([&] { return tessera::PathOf(file); }, [&] { return next(file, bytes, size); },
                      [](tessera::Disk& disk, const std::string& path) { disk.synced.emplace(path, 0); });
}

int fsync(int file) {
  static const auto next = tessera::NextOf(&::fsync, "fsync");
  return tessera::Met([&] { return tessera::PathOf(file); }, [&] { return next(file); },
                      [](tessera::Disk& disk, const std::string& path) { disk.OnSync(path); });
}

int rename(const char* from, const char* to) {
  static const auto next = tessera::NextOf(&::rename, "rename");
  return tessera::Met([&] { return std::string(to); }, [&] { return next(from, to); },
                      [&](tessera::Disk& disk, const std::string& path) { disk.OnRename(from, path); });
}

int mkdir(const char* name, mode_t mode) {
  static const auto next = tessera::NextOf(&::mkdir, "mkdir");
  return tessera::Met([&] { return std::string(name); }, [&] { return next(name, mode); },
                      [](tessera::Disk& disk, const std::string& path) { disk.new_folders.push_back(path); });
}
}
