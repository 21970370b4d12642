#include "tests/jobs/faulty_disk_vfs.h"

#include <sqlite3.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>

#include "tests/jobs/faulty_disk.h"

namespace tessera {

struct FaultyDiskVfs {
  struct Handle {
    sqlite3_file base;
    FaultyDisk* disk;
    FaultyDisk::File* file;
    std::string* delete_on_close;  // owned; null: kept
    int level;
    bool maps_memory;
  };

  static Handle& Of(sqlite3_file* file) { return *reinterpret_cast<Handle*>(file); }
  static FaultyDisk& DiskOf(sqlite3_vfs* vfs) { return *static_cast<FaultyDisk*>(vfs->pAppData); }

  static int Open(sqlite3_vfs* vfs, const char* name, sqlite3_file* file, int flags, int* out_flags) {
    static const sqlite3_io_methods kMethods = {
        2,       Close,  Read,     Write,  Truncate, Sync,       FileSize, Lock,    Unlock, CheckReserved,
        Control, Sector, Features, ShmMap, ShmLock,  ShmBarrier, ShmUnmap, nullptr, nullptr};
    FaultyDisk& disk = DiskOf(vfs);
    const std::lock_guard lock(disk.mutex_);
    file->pMethods = nullptr;
    if (disk.dead_) return SQLITE_CANTOPEN;
    const std::string path = name == nullptr ? "temporary" : name;
    FaultyDisk::File& named = disk.Named(path);
    if (!named.exists && (flags & SQLITE_OPEN_CREATE) == 0) return SQLITE_CANTOPEN;
    named.exists = true;
    Handle& handle = *new (file) Handle{};
    handle.base.pMethods = &kMethods;
    handle.disk = &disk;
    handle.file = &named;
    handle.delete_on_close = (flags & SQLITE_OPEN_DELETEONCLOSE) != 0 ? new std::string(path) : nullptr;
    handle.level = SQLITE_LOCK_NONE;
    handle.maps_memory = false;
    if (out_flags != nullptr) *out_flags = flags;
    return SQLITE_OK;
  }

  static int Close(sqlite3_file* file) {
    Handle& handle = Of(file);
    Unlock(file, SQLITE_LOCK_NONE);
    const std::lock_guard lock(handle.disk->mutex_);
    if (handle.delete_on_close != nullptr) handle.disk->Named(*handle.delete_on_close).exists = false;
    delete handle.delete_on_close;
    return SQLITE_OK;
  }

  static int Read(sqlite3_file* file, void* to, int size, sqlite3_int64 offset) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    if (handle.disk->dead_) return SQLITE_IOERR_READ;
    ++handle.disk->reads_;
    const std::string& bytes = handle.file->current;
    const size_t begin = std::min(bytes.size(), static_cast<size_t>(offset));
    const size_t found = std::min(bytes.size() - begin, static_cast<size_t>(size));
    std::memcpy(to, bytes.data() + begin, found);
    std::memset(static_cast<char*>(to) + found, 0, static_cast<size_t>(size) - found);
    return found == static_cast<size_t>(size) ? SQLITE_OK : SQLITE_IOERR_SHORT_READ;
  }

  static int Write(sqlite3_file* file, const void* from, int size, sqlite3_int64 offset) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    DiskFault met = DiskFault::kNone;
    const std::string bytes(static_cast<const char*>(from), static_cast<size_t>(size));
    if (handle.disk->DoWrite(*handle.file, static_cast<size_t>(offset), bytes, &met)) return SQLITE_OK;
    return met == DiskFault::kFull ? SQLITE_FULL : SQLITE_IOERR_WRITE;
  }

  static int Truncate(sqlite3_file* file, sqlite3_int64 size) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    return handle.disk->DoTruncate(*handle.file, static_cast<size_t>(size)) ? SQLITE_OK : SQLITE_IOERR_TRUNCATE;
  }

  static int Sync(sqlite3_file* file, int) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    return handle.disk->DoSync(*handle.file, true) ? SQLITE_OK : SQLITE_IOERR_FSYNC;
  }

  static int FileSize(sqlite3_file* file, sqlite3_int64* size) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    if (handle.disk->dead_) return SQLITE_IOERR_FSTAT;
    *size = static_cast<sqlite3_int64>(handle.file->current.size());
    return SQLITE_OK;
  }

  // Lock levels as defined by SQLite: any number of shared locks and one reserved lock, or one exclusive lock alone.
  static int Lock(sqlite3_file* file, int level) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    FaultyDisk::File& named = *handle.file;
    if (handle.level >= level) return SQLITE_OK;
    if (level == SQLITE_LOCK_SHARED) {
      if (named.exclusive.exclusive != nullptr) return SQLITE_BUSY;
      ++named.shared.shared;
    } else {
      if (named.reserved.exclusive != nullptr && named.reserved.exclusive != &handle) return SQLITE_BUSY;
      named.reserved.exclusive = &handle;
      if (level == SQLITE_LOCK_EXCLUSIVE) {
        if (named.shared.shared > 1) return SQLITE_BUSY;
        named.exclusive.exclusive = &handle;
      }
    }
    handle.level = level;
    return SQLITE_OK;
  }

  static int Unlock(sqlite3_file* file, int level) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    FaultyDisk::File& named = *handle.file;
    if (handle.level <= level) return SQLITE_OK;
    if (named.exclusive.exclusive == &handle) named.exclusive.exclusive = nullptr;
    if (named.reserved.exclusive == &handle) named.reserved.exclusive = nullptr;
    if (level == SQLITE_LOCK_NONE && named.shared.shared > 0) --named.shared.shared;
    handle.level = level;
    return SQLITE_OK;
  }

  static int CheckReserved(sqlite3_file* file, int* reserved) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    *reserved = handle.file->reserved.exclusive != nullptr ? 1 : 0;
    return SQLITE_OK;
  }

  static int Control(sqlite3_file*, int, void*) { return SQLITE_NOTFOUND; }
  static int Sector(sqlite3_file*) { return 512; }
  static int Features(sqlite3_file*) { return 0; }

  static int ShmMap(sqlite3_file* file, int region, int size, int extend, void volatile** memory) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    if (handle.disk->dead_) return SQLITE_IOERR_SHMMAP;
    auto& regions = handle.file->shared_memory;
    if (!handle.maps_memory) {
      handle.maps_memory = true;
      ++handle.file->shared_memory_users;
    }
    *memory = nullptr;
    if (static_cast<size_t>(region) >= regions.size()) {
      if (extend == 0) return SQLITE_OK;
      while (static_cast<size_t>(region) >= regions.size()) {
        regions.push_back(std::make_unique<char[]>(static_cast<size_t>(size)));
      }
    }
    *memory = regions[static_cast<size_t>(region)].get();
    return SQLITE_OK;
  }

  static int ShmLock(sqlite3_file* file, int offset, int count, int flags) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    FaultyDisk::Locks* locks = handle.file->shared_memory_locks + offset;
    const bool shared = (flags & SQLITE_SHM_SHARED) != 0;
    if ((flags & SQLITE_SHM_UNLOCK) != 0) {
      for (int i = 0; i < count; ++i) {
        if (shared && locks[i].shared > 0) --locks[i].shared;
        if (!shared && locks[i].exclusive == &handle) locks[i].exclusive = nullptr;
      }
      return SQLITE_OK;
    }
    for (int i = 0; i < count; ++i) {
      if (locks[i].exclusive != nullptr && locks[i].exclusive != &handle) return SQLITE_BUSY;
      if (!shared && locks[i].shared > 0) return SQLITE_BUSY;
    }
    for (int i = 0; i < count; ++i) {
      if (shared) {
        ++locks[i].shared;
      } else {
        locks[i].exclusive = &handle;
      }
    }
    return SQLITE_OK;
  }

  static void ShmBarrier(sqlite3_file* file) { const std::lock_guard lock(Of(file).disk->mutex_); }

  static int ShmUnmap(sqlite3_file* file, int) {
    Handle& handle = Of(file);
    const std::lock_guard lock(handle.disk->mutex_);
    if (!handle.maps_memory) return SQLITE_OK;
    handle.maps_memory = false;
    if (--handle.file->shared_memory_users == 0) handle.file->shared_memory.clear();
    return SQLITE_OK;
  }

  static int Delete(sqlite3_vfs* vfs, const char* name, int sync_folder) {
    FaultyDisk& disk = DiskOf(vfs);
    const std::lock_guard lock(disk.mutex_);
    if (disk.dead_) return SQLITE_IOERR_DELETE;
    FaultyDisk::File& file = disk.Named(name);
    if (!file.exists) return SQLITE_IOERR_DELETE_NOENT;
    if (sync_folder != 0 && disk.Meet(false) != DiskFault::kNone) return SQLITE_IOERR_DELETE;
    file.exists = false;
    file.current.clear();
    file.unsynced.push_back({.offset = 0, .truncates = true});
    if (sync_folder != 0 && !disk.lies_) {
      file.durable_exists = false;
      file.durable.clear();
      file.unsynced.clear();
    }
    return SQLITE_OK;
  }

  static int Access(sqlite3_vfs* vfs, const char* name, int, int* result) {
    FaultyDisk& disk = DiskOf(vfs);
    const std::lock_guard lock(disk.mutex_);
    *result = disk.Named(name).exists ? 1 : 0;
    return SQLITE_OK;
  }

  static int FullPath(sqlite3_vfs*, const char* name, int size, char* out) {
    sqlite3_snprintf(size, out, "%s", name);
    return SQLITE_OK;
  }

  static int Randomness(sqlite3_vfs*, int size, char* out) {
    std::memset(out, 7, static_cast<size_t>(size));
    return size;
  }
  // SQLite relies on the progress of other threads during this call.
  static int Sleep(sqlite3_vfs*, int microseconds) {
    sqlite3_vfs* const real = sqlite3_vfs_find("unix");
    return real->xSleep(real, microseconds);
  }
  static int CurrentTime(sqlite3_vfs*, double* days) {
    *days = 2460000;
    return SQLITE_OK;
  }
  static int LastError(sqlite3_vfs*, int, char*) { return 0; }
};

sqlite3_vfs* RegisterVfs(FaultyDisk& disk, const std::string& name) {
  auto* vfs = new sqlite3_vfs{};
  char* kept = new char[name.size() + 1];
  std::memcpy(kept, name.c_str(), name.size() + 1);
  vfs->iVersion = 1;
  vfs->szOsFile = sizeof(FaultyDiskVfs::Handle);
  vfs->mxPathname = 512;
  vfs->zName = kept;
  vfs->pAppData = &disk;
  vfs->xOpen = FaultyDiskVfs::Open;
  vfs->xDelete = FaultyDiskVfs::Delete;
  vfs->xAccess = FaultyDiskVfs::Access;
  vfs->xFullPathname = FaultyDiskVfs::FullPath;
  vfs->xRandomness = FaultyDiskVfs::Randomness;
  vfs->xSleep = FaultyDiskVfs::Sleep;
  vfs->xCurrentTime = FaultyDiskVfs::CurrentTime;
  vfs->xGetLastError = FaultyDiskVfs::LastError;
  sqlite3_vfs_register(vfs, 0);
  return vfs;
}

void UnregisterVfs(sqlite3_vfs* vfs) {
  sqlite3_vfs_unregister(vfs);
  delete[] vfs->zName;
  delete vfs;
}

}  // namespace tessera
