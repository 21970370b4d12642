// SegmentMirror joins the ranks of several hosts into one world. Every host has a segment of the whole world; a rank
// finds in its host's segment what the ranks of other hosts have sent it, and does not need to know where they run.
//
// The mirror of a host collects what its ranks have written (slots, read positions, calls, beats, poison) as batches of
// updates, and writes the updates of other hosts' batches into the segment. A slot is freed only after the receiver has
// read it on its host, so a channel holds as much as on one host, and a mirror queues nothing.
//
// Hosts are numbered. One of them, the hub, is connected to all others and forwards updates that are not for itself:
// Route. Collect and Wait must be called from one thread, Apply and Route from one other thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/remote/segment_update.h"
#include "parallel/segment/segment.h"

namespace tessera::parallel {

// Longest time between two calls of SegmentMirror::Wait in a loop that sends what it collects.
inline constexpr std::chrono::milliseconds kMirrorWait{20};

class SegmentMirror {
 public:
  // `host_of_rank` gives the host of every rank of the world; `here` is this host's number, which may have no rank.
  SegmentMirror(std::shared_ptr<HostSegment> segment, std::vector<int> host_of_rank, int here);

  // Returns what this host's ranks have changed since the last call, at most some hundred KiB; empty if there is
  // nothing.
  std::string Collect();
  // Waits until something may have changed since the last call of Collect, or the time has passed.
  void Wait(std::chrono::milliseconds time);

  // Applies a batch from the hub. Returns INVALID_ARGUMENT for a batch that no rank of another host can have written;
  // the world cannot be used afterwards. An invalid update is not written.
  absl::Status Apply(std::string_view batch);

  // For the hub: applies a batch of host `from` like Apply, and returns the updates for other hosts, by host. A batch
  // of the hub itself (`from` is `here`) is not applied.
  absl::StatusOr<std::map<int, std::string>> Route(int from, std::string_view batch);

 private:
  struct SentChannel {
    uint64_t written = 0, read = 0, posted = 0;
  };
  struct SentBeats {
    uint64_t beats = 0, effort = 0, loaded = 0, to_load = 0;
  };
  struct SentArea {
    uint64_t entered = 0, barriers = 0, activity = 0, call = 0;
  };
  struct Group {
    std::vector<int> hosts;             // by rank of the group
    std::vector<SentChannel> channels;  // from * size + to
    std::vector<SentArea> areas;
  };

  void CollectGroup(int group, std::string& batch);
  void CollectChannel(int group, int from, int to, std::string& batch);
  void CollectArea(int group, int rank, std::string& batch);
  void CollectWorld(std::string& batch);
  bool IsOf(int host, int from) const;
  // Checks that a rank of host `from` may send this update.
  absl::Status Check(int from, const SegmentUpdate& update) const;
  absl::Status Write(const SegmentUpdate& update);
  absl::Status WriteSlot(const SegmentUpdate& update);
  absl::Status WriteArea(const SegmentUpdate& update);
  // Returns the host that the update is for; -1: all.
  int Destination(const SegmentUpdate& update) const;

  const std::shared_ptr<HostSegment> segment_;
  const std::vector<int> host_of_rank_;
  const int here_;
  host_layout::Bell& bell_;
  std::vector<Group> groups_;
  std::vector<SentBeats> sent_;  // by rank of the world
  std::vector<int> hosts_;       // hosts of ranks, without duplicates
  std::chrono::steady_clock::time_point beaten_ = {};
  uint32_t seen_ = 0;
  std::atomic<bool> poison_known_ = false;  // it has been sent to other hosts, or received from one
};

}  // namespace tessera::parallel
