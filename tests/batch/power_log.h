// PowerLog records the system calls with which this process writes below one folder, and reconstructs the disk as if
// the power had been cut after any of these calls.
//
// A test program that links it has its own write, fsync, rename and so on, which call the system's functions and record
// the call. The reconstructed disk keeps no more than it must. Each 512-byte sector written to a file since its last
// sync may or may not survive. Names (created, moved, removed) are durable once their folder is synced; of later
// changes the disk has executed some number, in order. The program's syncs are only recorded and cost nothing.
// Single-threaded.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

class PowerLog {
 public:
  // Starts to record calls below `folder`, which must exist. Only one PowerLog may exist at a time.
  explicit PowerLog(std::string folder);
  ~PowerLog();

  PowerLog(const PowerLog&) = delete;
  PowerLog& operator=(const PowerLog&) = delete;

  size_t calls() const { return calls_.size(); }
  void Stop();  // stops recording

  // Creates `folder`, which must not exist, with the state after the first `calls` calls and a power cut. `seed`
  // determines what survives. `lies`: the disk reports syncs that it does not execute.
  void Restore(const std::string& folder, size_t calls, uint64_t seed, bool lies = false) const;

  enum class Kind : uint8_t { kMakeFile, kMakeFolder, kWrite, kTruncate, kSyncFile, kSyncFolder, kMove, kRemove };
  // Records one call. The wrappers of system calls use it. Paths are absolute.
  void Note(Kind kind, const std::string& path, uint64_t offset = 0, std::string bytes = "", std::string to = "");

 private:
  struct Call {
    Kind kind;
    std::string path;
    uint64_t offset = 0;
    std::string bytes;  // written by the call
    std::string to;     // of a move
  };
  struct Inode;
  class Disk;

  const std::string folder_;
  std::vector<Call> calls_;
};

}  // namespace tessera
