// Encodes changes in the segment of one host as bytes for another host. A batch is a sequence of updates.
//
// All hosts of a group run the same build, so numbers have the processor's representation. Everything read is checked,
// because a batch comes from another machine.
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
  kRead,      // slots of that channel were read, and messages are expected
  kArea,      // a rank's description of its latest calls
  kBeats,     // of a rank of the world, with its effort and what it has loaded
  kPoison,    // of the world
};

struct SegmentUpdate {
  UpdateKind kind = UpdateKind::kBeats;
  int group = 0;
  int from = 0;  // in the group: the channel's writer, the area's rank; in the world: the beats' rank, the culprit
  int to = 0;    // in the group: the channel's reader
  uint64_t index = 0;                                          // of a slot; number of slots read; beats
  uint64_t effort = 0;                                         // with beats
  uint64_t loaded = 0, to_load = 0;                            // with beats: LoadReport
  uint64_t posted = 0;                                         // with kRead
  host_layout::SlotHeader header = {};                         // of a slot
  uint64_t entered = 0, barriers = 0, activity = 0, call = 0;  // of an area
  std::vector<std::pair<uint64_t, std::array<uint64_t, host_layout::kNoteWords>>> notes;  // of an area, by sequence
  std::string_view bytes;  // of a slot, or the reason of poison; not owned
};

void AppendUpdate(const SegmentUpdate& update, std::string& batch);

// Returns INVALID_ARGUMENT if the bytes are not a batch. The updates' `bytes` point into `batch`.
absl::StatusOr<std::vector<SegmentUpdate>> ReadUpdates(std::string_view batch);

}  // namespace tessera::parallel
