// FaultyDisk is an in-memory disk that fails on request, under SQLite's file layer and the result files of the job
// store: errors, torn writes, a full disk and power cuts.
//
// It tracks what was synced. After a power cut, each 512-byte sector written since the last sync of a file may or may
// not survive. A new name is durable once the file (SQLite's) or the folder (result files) is synced. Writes,
// truncations, syncs and moves are operations; they are counted from the last Plan. Thread-safe. It must outlive its
// users.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "server/jobs/result_store.h"

namespace tessera {

enum class DiskFault : uint8_t {
  kNone,
  kError,     // the operation fails and writes nothing
  kTorn,      // the operation writes half and fails
  kFull,      // the operation and all later ones that need space fail, until Plan
  kPowerCut,  // the operation writes half; then nothing works until Restart
};

class FaultyDisk {
 public:
  FaultyDisk();
  ~FaultyDisk();

  FaultyDisk(const FaultyDisk&) = delete;
  FaultyDisk& operator=(const FaultyDisk&) = delete;

  // `fault` hits the `operation`th operation from now, counted from 0, and every `every`th after it (0: only that one).
  void Plan(DiskFault fault, int64_t operation, int64_t every = 0);
  int64_t operations() const;  // since the last Plan
  int64_t reads() const;       // of SQLite's files, in total
  bool dead() const;           // after a power cut

  // Restarts the machine after a power cut, or as if there had been one. `seed` determines what survived.
  void Restart(uint64_t seed);

  // Whether the disk reports syncs that it does not execute.
  void SetSyncsAreLies(bool lies);

  const std::string& vfs() const { return vfs_name_; }
  server::ResultStore& files();

  // Returns the current bytes of one file, for tests that damage them. Null if there is no such file.
  std::string* BytesOf(const std::string& name);
  // Returns the bytes of a new file.
  std::string* MakeFile(const std::string& name);

 private:
  friend struct FaultyDiskVfs;
  class Files;

  struct Write {
    size_t offset = 0;
    std::string bytes;
    bool truncates = false;  // to `offset`
  };
  struct Locks {
    int shared = 0;
    const void* exclusive = nullptr;
  };
  struct File {
    std::string name;
    bool exists = false;
    bool durable_exists = false;
    std::string current;
    std::string durable;
    std::vector<Write> unsynced;
    Locks shared, reserved, exclusive;  // SQLite's lock levels
    std::vector<std::unique_ptr<char[]>> shared_memory;
    Locks shared_memory_locks[8];
    int shared_memory_users = 0;
  };

  // The functions below require mutex_. Those that return bool return whether the operation succeeded.
  DiskFault Meet(bool needs_room);
  bool DoWrite(File& file, size_t offset, const std::string& bytes, DiskFault* met);
  bool DoTruncate(File& file, size_t size);
  bool DoSync(File& file, bool makes_name_durable);
  void SyncNames(const std::string& folder);
  bool DoRename(const std::string& from, const std::string& to);
  File& Named(const std::string& name);

  mutable std::mutex mutex_;
  std::map<std::string, std::unique_ptr<File>> named_;
  DiskFault fault_ = DiskFault::kNone;
  int64_t fault_at_ = 0;
  int64_t fault_every_ = 0;
  int64_t operations_ = 0;
  int64_t reads_ = 0;
  bool full_ = false;
  bool dead_ = false;
  bool lies_ = false;

  const std::string vfs_name_;
  std::unique_ptr<Files> files_;
  struct Registration;
  std::unique_ptr<Registration> registration_;
};

}  // namespace tessera
