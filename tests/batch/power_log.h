// What this process writes below one folder, call by call, and the disk as it would be had the power been cut after any
// of these calls.
//
// The test program that links it has its own write, fsync, rename and their like, which do what the system's do and
// note it. The disk keeps no more than it must: of what was written to a file since its last sync each 512-byte sector
// may be there or not, and names (new, moved, removed) are durable once their folder is synced; of those that are not,
// the disk has carried out some, from the first on. A sync itself is noted and costs nothing. For one thread.
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
  // From now on, below this folder, which is there. One at a time.
  explicit PowerLog(std::string folder);
  ~PowerLog();

  PowerLog(const PowerLog&) = delete;
  PowerLog& operator=(const PowerLog&) = delete;

  size_t calls() const { return calls_.size(); }
  void Stop();  // notes nothing more

  // Makes `folder`, which is not there, as the noted one would be after the first `calls` and a power cut. `seed`
  // decides what survived. `lies`: of a disk that says it has synced and has not.
  void Restore(const std::string& folder, size_t calls, uint64_t seed, bool lies = false) const;

  enum class Kind : uint8_t { kMakeFile, kMakeFolder, kWrite, kTruncate, kSyncFile, kSyncFolder, kMove, kRemove };
  // For the calls themselves; paths are absolute.
  void Note(Kind kind, const std::string& path, uint64_t offset = 0, std::string bytes = "", std::string to = "");

 private:
  struct Call {
    Kind kind;
    std::string path;
    uint64_t offset = 0;
    std::string bytes;  // that were written
    std::string to;     // of a move
  };
  struct Inode;
  class Disk;

  const std::string folder_;
  std::vector<Call> calls_;
};

}  // namespace tessera
