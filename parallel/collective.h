// The kinds of calls on a communicator.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera::parallel {

enum class Collective : uint8_t {
  kAllReduceSum,
  kAllGather,
  kReduceScatterSum,
  kAllToAll,
  kBroadcast,
  kSend,
  kRecv,
  kShift,
  kBarrier,
};
inline constexpr int kCollectives = 9;

constexpr std::string_view Name(Collective collective) {
  constexpr std::array<std::string_view, kCollectives> kNames = {
      "AllReduceSum", "AllGather", "ReduceScatterSum", "AllToAll", "Broadcast", "Send", "Recv", "Shift", "Barrier"};
  return kNames[static_cast<int>(collective)];
}

}  // namespace tessera::parallel
