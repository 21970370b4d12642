// BreakDisk breaks the disk below one folder, in a program that links it: the program's write, fsync, rename and mkdir
// replace the system's functions. Each of these calls below the folder is counted.
//
// A power cut loses what was not synced: a part of each file's last bytes, and any of the renames and new folders whose
// parent was not synced. Thread-safe.
#pragma once

#include <cstdint>
#include <string>

namespace tessera {

enum class DiskCallFault : uint8_t {
  kError,     // the call fails (EIO) without effect
  kFull,      // the call and all later ones fail (ENOSPC)
  kKill,      // the process is killed before the call
  kPowerCut,  // the machine loses power before the call; the process ends
};

// Breaks the `call`th call from now, counted from 0. `seed` determines what survives a power cut.
void BreakDisk(const std::string& folder, DiskCallFault fault, int64_t call, uint64_t seed = 0);
// Ends the fault. Returns whether the call was reached.
bool RestoreDisk();

}  // namespace tessera
