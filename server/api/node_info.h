// NodeInfo describes, for operators, a host that provides devices to the server.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera::server {

enum class NodeState { kJoined, kLost };
inline constexpr std::array<absl::string_view, 2> kNodeStates = {"joined", "lost"};
constexpr absl::string_view NodeStateName(NodeState state) { return kNodeStates[static_cast<size_t>(state)]; }

struct NodeInfo {
  std::string name;
  NodeState state = NodeState::kJoined;
  std::vector<std::string> devices;           // offered when it last joined
  uint64_t epoch = 0;                         // number of its last admission, counted over all nodes
  absl::Time changed = absl::InfinitePast();  // when it entered this state
};

}  // namespace tessera::server
