// The kinds of calls on a communicator.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera::parallel {

enum class Collective : uint8_t {
  kSum,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kBroadcast,
  kSend,
  kRecv,
  kShift,
  kExchange,
  kBarrier,
};
inline constexpr int kCollectives = 10;

constexpr std::string_view Name(Collective collective) {
  constexpr std::array<std::string_view, kCollectives> kNames = {
      "Sum", "ReduceScatter", "AllGather", "AllToAll", "Broadcast", "Send", "Recv", "Shift", "Exchange", "Barrier"};
  return kNames[static_cast<int>(collective)];
}

// Returns whether a call concerns only the ranks that send to or receive from each other in it. Other ranks need not
// call.
constexpr bool PointToPoint(Collective collective) {
  return collective == Collective::kSend || collective == Collective::kRecv || collective == Collective::kShift ||
         collective == Collective::kExchange;
}

}  // namespace tessera::parallel
