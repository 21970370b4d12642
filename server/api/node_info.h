// Of a host that lends its devices to the server, for operators.
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
  std::vector<std::string> devices;           // that it offered when it joined last
  uint64_t epoch = 0;                         // of the last admission, of all nodes
  absl::Time changed = absl::InfinitePast();  // when it came into this state
};

}  // namespace tessera::server
