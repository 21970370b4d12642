// What the storage of jobs and images does, whatever keeps them.
#pragma once

#include <array>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace tessera::server {

// The later ones are the graver ones: a trouble is as grave as the gravest thing it brought.
enum class StorageState : uint8_t {
  kOk,
  kFull,
  kFailing,
  kUnreachable,  // the database of the queue does not answer
  kMoved,        // what is open is not what is found under its name: removed, or another disk lies over it
  kDamaged,      // what was kept cannot be read as it was written
};

inline constexpr std::array<absl::string_view, 6> kStorageStates = {"ok",          "full",  "failing",
                                                                    "unreachable", "moved", "damaged"};

constexpr absl::string_view StorageStateName(StorageState state) { return kStorageStates[static_cast<size_t>(state)]; }

}  // namespace tessera::server
