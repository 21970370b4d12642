#include "tests/batch/power_log.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdarg.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr size_t kSector = 512;

PowerLog* noting = nullptr;

// Returns the path of an open file; empty if it has none.
std::string PathOf(int file) {
  char path[4096];
  const ssize_t size = readlink(absl::StrCat("/proc/self/fd/", file).c_str(), path, sizeof(path));
  return size > 0 ? std::string(path, static_cast<size_t>(size)) : "";
}

std::string PathAt(int folder, const char* name) {
  if (name[0] == '/') return name;
  return absl::StrCat(folder == AT_FDCWD ? fs::current_path().string() : PathOf(folder), "/", name);
}

}  // namespace

struct PowerLog::Inode {
  struct Write {
    size_t offset = 0;
    std::string bytes;
    bool truncates = false;
  };

  bool is_folder = false;
  std::string durable, current;
  std::vector<Write> unsynced;
};

// The state of the disk while the recorded calls are replayed.
class PowerLog::Disk {
 public:
  explicit Disk(const std::string& root) : root_(root) {}

  void Carry(const Call& call) {
    switch (call.kind) {
      case Kind::kMakeFile:
      case Kind::kMakeFolder:
        now_[call.path] = std::make_shared<Inode>();
        now_[call.path]->is_folder = call.kind == Kind::kMakeFolder;
        Change(call.path, {{call.path, now_[call.path]}});
        break;
      case Kind::kWrite:
        Write(*now_.at(call.path), {.offset = call.offset, .bytes = call.bytes});
        break;
      case Kind::kTruncate:
        Write(*now_.at(call.path), {.offset = call.offset, .bytes = "", .truncates = true});
        break;
      case Kind::kSyncFile:
        now_.at(call.path)->durable = now_.at(call.path)->current;
        now_.at(call.path)->unsynced.clear();
        break;
      case Kind::kSyncFolder:
        for (const auto& change : std::exchange(changes_[call.path], {})) Keep(change);
        break;
      case Kind::kMove: {
        const std::shared_ptr<Inode> moved = now_.at(call.path);
        now_.erase(call.path);
        now_[call.to] = moved;
        Change(call.path, {{call.to, moved}, {call.path, nullptr}});
        break;
      }
      case Kind::kRemove:
        now_.erase(call.path);
        Change(call.path, {{call.path, nullptr}});
        break;
    }
  }

  // Writes the surviving files to the folder `root`.
  void Save(const std::string& root, uint64_t seed) {
    std::mt19937_64 random(seed);
    for (auto& [folder, changes] : changes_) {
      const size_t kept = random() % (changes.size() + 1);
      for (size_t i = 0; i < kept; ++i) Keep(changes[i]);
    }
    fs::create_directories(root);
    for (const auto& [path, inode] : durable_) {  // a folder precedes its contents
      const fs::path place = root + path.substr(root_.size());
      if (!fs::exists(place.parent_path())) continue;
      if (inode->is_folder) {
        fs::create_directory(place);
      } else {
        std::ofstream(place, std::ios::binary) << Survivor(*inode, random);
      }
    }
  }

 private:
  using Names = std::vector<std::pair<std::string, std::shared_ptr<Inode>>>;  // null: the name was removed

  static void Do(const Inode::Write& write, std::string& bytes) {
    if (write.truncates) return bytes.resize(write.offset);
    if (bytes.size() < write.offset + write.bytes.size()) bytes.resize(write.offset + write.bytes.size());
    bytes.replace(write.offset, write.bytes.size(), write.bytes);
  }

  static void Write(Inode& inode, const Inode::Write& write) {
    Do(write, inode.current);
    inode.unsynced.push_back(write);
  }

  static std::string Survivor(const Inode& inode, std::mt19937_64& random) {
    std::string bytes = inode.durable;
    for (const Inode::Write& write : inode.unsynced) {
      if (write.truncates) {
        if (random() % 2 == 0) Do(write, bytes);
        continue;
      }
      for (size_t at = 0; at < write.bytes.size();) {
        const size_t part = std::min(kSector - (write.offset + at) % kSector, write.bytes.size() - at);
        if (random() % 2 == 0) Do({.offset = write.offset + at, .bytes = write.bytes.substr(at, part)}, bytes);
        at += part;
      }
    }
    return bytes;
  }

  void Change(const std::string& path, Names names) {
    changes_[fs::path(path).parent_path().string()].push_back(std::move(names));
  }
  void Keep(const Names& names) {
    for (const auto& [path, inode] : names) {
      if (inode == nullptr) {
        durable_.erase(path);
      } else {
        durable_[path] = inode;
      }
    }
  }

  const std::string root_;
  std::map<std::string, std::shared_ptr<Inode>> now_, durable_;
  std::map<std::string, std::vector<Names>> changes_;  // of names in a folder, since its last sync
};

PowerLog::PowerLog(std::string folder) : folder_(std::move(folder)) { noting = this; }
PowerLog::~PowerLog() { Stop(); }
void PowerLog::Stop() {
  if (noting == this) noting = nullptr;
}

void PowerLog::Note(Kind kind, const std::string& path, uint64_t offset, std::string bytes, std::string to) {
  if (!absl::StartsWith(path, folder_ + "/") && !(kind == Kind::kSyncFolder && path == folder_)) return;
  calls_.push_back({.kind = kind, .path = path, .offset = offset, .bytes = std::move(bytes), .to = std::move(to)});
}

void PowerLog::Restore(const std::string& folder, size_t calls, uint64_t seed, bool lies) const {
  Disk disk(folder_);
  for (size_t i = 0; i < calls; ++i) {
    const bool syncs = calls_[i].kind == Kind::kSyncFile || calls_[i].kind == Kind::kSyncFolder;
    if (!lies || !syncs) disk.Carry(calls_[i]);
  }
  disk.Save(folder, seed);
}

}  // namespace tessera

// Wrappers that record the system calls. They replace those of the C library in this program.
extern "C" {

using tessera::noting;
using tessera::PathAt;
using tessera::PathOf;
using Kind = tessera::PowerLog::Kind;

static int OpenAt(int folder, const char* name, int flags, mode_t mode) {
  const bool may_make = noting != nullptr && (flags & O_CREAT) != 0;
  struct stat about;
  const bool is_new = may_make && fstatat(folder, name, &about, AT_SYMLINK_NOFOLLOW) != 0;
  const auto file = static_cast<int>(syscall(SYS_openat, folder, name, flags, mode));
  if (file >= 0 && is_new) noting->Note(Kind::kMakeFile, PathAt(folder, name));
  return file;
}

int open(const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return OpenAt(AT_FDCWD, name, flags, mode);
}

int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;
  va_end(rest);
  return OpenAt(folder, name, flags, mode);
}

ssize_t write(int file, const void* bytes, size_t size) {
  const off_t at = noting == nullptr ? 0 : lseek(file, 0, SEEK_CUR);
  const ssize_t written = syscall(SYS_write, file, bytes, size);
  if (noting != nullptr && written > 0) {
    noting->Note(Kind::kWrite, PathOf(file), static_cast<uint64_t>(at),
                 std::string(static_cast<const char*>(bytes), static_cast<size_t>(written)));
  }
  return written;
}

int ftruncate(int file, off_t size) noexcept {
  const auto done = static_cast<int>(syscall(SYS_ftruncate, file, size));
  if (noting != nullptr && done == 0) noting->Note(Kind::kTruncate, PathOf(file), static_cast<uint64_t>(size));
  return done;
}

int fsync(int file) {
  struct stat about;
  if (noting == nullptr || fstat(file, &about) != 0) return 0;
  noting->Note(S_ISDIR(about.st_mode) ? Kind::kSyncFolder : Kind::kSyncFile, PathOf(file));
  return 0;
}

int fdatasync(int file) { return fsync(file); }

int mkdir(const char* name, mode_t mode) noexcept {
  const auto done = static_cast<int>(syscall(SYS_mkdir, name, mode));
  if (noting != nullptr && done == 0) noting->Note(Kind::kMakeFolder, PathAt(AT_FDCWD, name));
  return done;
}

int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned int flags) noexcept {
  const auto done = static_cast<int>(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
  if (noting != nullptr && done == 0) {
    noting->Note(Kind::kMove, PathAt(from_folder, from), 0, "", PathAt(to_folder, to));
  }
  return done;
}

int renameat(int from_folder, const char* from, int to_folder, const char* to) noexcept {
  return renameat2(from_folder, from, to_folder, to, 0);
}

int unlinkat(int folder, const char* name, int flags) noexcept {
  const auto done = static_cast<int>(syscall(SYS_unlinkat, folder, name, flags));
  if (noting != nullptr && done == 0) noting->Note(Kind::kRemove, PathAt(folder, name));
  return done;
}

int unlink(const char* name) noexcept { return unlinkat(AT_FDCWD, name, 0); }

int remove(const char* name) noexcept {
  const int done = unlinkat(AT_FDCWD, name, 0);
  return done == 0 || errno != EISDIR ? done : unlinkat(AT_FDCWD, name, AT_REMOVEDIR);
}

}  // extern "C"
