// StorageState is the condition of the storage for jobs and images, for every kind of store.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace tessera::server {

// In ascending order of severity; a failure has the severity of its worst effect.
enum class StorageState : uint8_t {
  kOk,
  kFull,
  kFailing,
  kUnreachable,  // the database of the job queue does not respond
  kMoved,    // the open files are not those found at their paths: they were removed, or another file system is mounted
             // over them
  kDamaged,  // stored data cannot be read as it was written
};

inline constexpr std::array<absl::string_view, 6> kStorageStates = {"ok",          "full",  "failing",
                                                                    "unreachable", "moved", "damaged"};

constexpr absl::string_view StorageStateName(StorageState state) { return kStorageStates[static_cast<size_t>(state)]; }

}  // namespace tessera::server
