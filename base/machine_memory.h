// How much memory this process can still take. Linux; LibTorch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace tessera::base {

// Bytes, each as its own source says it; a source that is absent, unreadable or not understood limits nothing.
struct MachineMemory {
  // MemAvailable: what can be had without swapping, dropped caches included. Swap space does not count.
  std::optional<int64_t> machine;
  // Of the process's control group and each group above it, the least that is left: the limit (memory.max and
  // memory.high, or memory.limit_in_bytes in version 1) less what is in use, in which inactive pages of files do not
  // count, since they are dropped when memory is short. Empty if no group has a limit.
  std::optional<int64_t> control_group;
  // What is left below the limit of address space (ulimit -v).
  std::optional<int64_t> address_space;

  // What remains when others of this machine and group take so many bytes.
  MachineMemory Without(int64_t bytes) const;

  int64_t available() const;         // the least of them; the largest number there is if nothing is known
  std::string available_in() const;  // which of them that is, in words
};

// Reads `root`/proc and `root`/sys; a root other than the empty one is for tests. The answer holds for the moment:
// other processes take memory too.
MachineMemory ReadMachineMemory(const std::string& root = "");

// What this process and those beside it in its control group could have if all others ended: the machine's memory, or
// the least limit of the group and those above it. The largest number there is if nothing is known.
int64_t ReadTotalMemory(const std::string& root = "");

// Of the control group with the least limit among this process's own and those above it.
struct ControlGroupMemory {
  int64_t limit = 0;
  int64_t in_use = 0;  // without pages of files, which are dropped when memory is short
};
std::optional<ControlGroupMemory> ReadControlGroupMemory(const std::string& root = "");

// What the processes take that no file has the bytes of, in bytes; those that have ended take nothing.
int64_t ReadProcessMemory(const std::vector<int64_t>& processes, const std::string& root = "");
// This process, its parent and its children.
std::vector<int64_t> ProcessFamily(const std::string& root = "");

// How many processes the kernel has killed in the control groups of this process because a limit of memory was reached.
int64_t ReadOutOfMemoryKills(const std::string& root = "");

}  // namespace tessera::base
