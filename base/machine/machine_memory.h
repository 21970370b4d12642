// Determines how much more memory this process can use. Linux only; does not use LibTorch.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::base {

// Sizes in bytes, each from a separate source. A source that is absent, unreadable or malformed sets no limit.
struct MachineMemory {
  // MemAvailable: memory that is available without swapping, including droppable caches. Swap space does not count.
  std::optional<int64_t> machine;
  // The least remaining memory of the process's control group and its ancestors: the limit (memory.max and memory.high,
  // or memory.limit_in_bytes in version 1) less the memory in use. Inactive file pages do not count as used, since they
  // are dropped when memory is short. Empty if no group has a limit.
  std::optional<int64_t> control_group;
  // What remains of the limit of address space (ulimit -v).
  std::optional<int64_t> address_space;

  // Returns the remaining memory if other processes of this machine and group use `bytes` more.
  MachineMemory Without(int64_t bytes) const;

  int64_t available() const;         // the least of them; the largest int64_t if nothing is known
  std::string available_in() const;  // the name of the least of them
};

// Reads `root`/proc and `root`/sys; tests use a root that is not empty. The result is a snapshot, because other
// processes also allocate memory.
MachineMemory ReadMachineMemory(const std::string& root = "");

// Returns the memory that this process and the others in its control group could use if all other processes ended: the
// machine's memory, or the least limit of the group and its ancestors. The largest int64_t if nothing is known.
int64_t ReadTotalMemory(const std::string& root = "");

// The memory of the control group with the least limit among this process's group and its ancestors.
struct ControlGroupMemory {
  int64_t limit = 0;
  // Without pages of files that no process has mapped. Mapped ones, such as programs and libraries, could also be
  // dropped when memory is short, but would be read again at once.
  int64_t in_use = 0;
};
std::optional<ControlGroupMemory> ReadControlGroupMemory(const std::string& root = "");

// Returns the bytes of the processes' memory that are not backed by a file. Processes that have ended count as 0.
int64_t ReadProcessMemory(const std::vector<int64_t>& processes, const std::string& root = "");
// Returns this process, its parent and its children.
std::vector<int64_t> ProcessFamily(const std::string& root = "");

// Returns how many processes the kernel has killed in this process's control groups because a memory limit was reached.
int64_t ReadOutOfMemoryKills(const std::string& root = "");

}  // namespace tessera::base
