// What changed in the segment of one host, as bytes for another host: a batch is one update after the other.
//
// Hosts of one group run one build, so numbers are as the processor has them. Whatever is read is checked: a batch
// comes from another machine.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "parallel/segment/segment.h"

namespace tessera::parallel {

enum class UpdateKind : uint8_t {
  kSlot = 1,  // a slot was filled, from one rank of the group to another
  kRead,      // slots of that channel were read, and messages are waited for
  kArea,      // what a rank says of its latest calls
  kBeats,     // of a rank of the world
  kPoison,    // of the world
};

struct SegmentUpdate {
  UpdateKind kind = UpdateKind::kBeats;
  int group = 0;
  int from =
      0;       // of the group: who writes the channel, or whose area it is. Of the world: whose beats, who is to blame
  int to = 0;  // of the group: who reads the channel
  uint64_t index = 0;                                          // of a slot; slots that were read; beats
  uint64_t effort = 0;                                         // beside beats
  uint64_t posted = 0;                                         // of what is read
  host_layout::SlotHeader header = {};                         // of a slot
  uint64_t entered = 0, barriers = 0, activity = 0, call = 0;  // of an area
  std::vector<std::pair<uint64_t, std::array<uint64_t, host_layout::kNoteWords>>> notes;  // of an area, by sequence
  std::string_view bytes;  // of a slot, or the reason of poison; not owned
};

void AppendUpdate(const SegmentUpdate& update, std::string& batch);

// INVALID_ARGUMENT where the bytes are no batch. The updates' own bytes lie in `batch`.
absl::StatusOr<std::vector<SegmentUpdate>> ReadUpdates(std::string_view batch);

}  // namespace tessera::parallel
