// The states of a worker group on its way to serving, and how much of its model it has loaded.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace tessera::server {

enum class GroupState : uint8_t { kStarting, kLoading, kCertifying, kReady, kRefused, kRestarting, kStopped };

inline constexpr std::array<absl::string_view, 7> kGroupStates = {"starting", "loading",    "certifying", "ready",
                                                                  "refused",  "restarting", "stopped"};

constexpr absl::string_view GroupStateName(GroupState state) { return kGroupStates[static_cast<size_t>(state)]; }

struct GroupProgress {
  GroupState state = GroupState::kStarting;
  // The part of the weight files that its workers have read, 0 to 1: 1 if the group is ready, else 0 unless it is
  // loading.
  double loaded = 0;

  bool is_ready() const { return state == GroupState::kReady; }  // the model is loaded and warm
  // Whether this is the progress of a group that will serve sooner than `other`.
  bool IsAheadOf(const GroupProgress& other) const {
    constexpr std::array<int, kGroupStates.size()> kOrder = {4, 5, 3, 6, 0, 2, 1};
    const int own = kOrder[static_cast<size_t>(state)], others = kOrder[static_cast<size_t>(other.state)];
    return own != others ? own > others : loaded > other.loaded;
  }
};

}  // namespace tessera::server
