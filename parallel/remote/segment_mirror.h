// Makes one world of ranks out of those of several hosts. Every host has a segment of the whole world; a rank finds in
// its own what the ranks of other hosts have sent it, and needs not know where they run.
//
// The mirror of a host collects what its ranks have written (slots, what they have read, their calls, beats, poison) as
// batches of updates, and writes into the segment what batches of other hosts say. A slot leaves its channel once the
// receiver has read it on its own host, so a channel holds as much as on one host, and a mirror queues nothing.
//
// Hosts are numbered; one of them, the hub, is connected to all others and hands on what is not for itself: Route.
// Collect and Wait are for one thread, Apply and Route for another one.
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

class SegmentMirror {
 public:
  // `host_of_rank`: of every rank of the world; `here`: this host's number, of which there may be no rank.
  SegmentMirror(std::shared_ptr<HostSegment> segment, std::vector<int> host_of_rank, int here);

  // What this host's ranks have changed since the last call, some hundred KiB at most; empty: nothing.
  std::string Collect();
  // Until something may have changed, or the time has passed, since Collect was called last.
  void Wait(std::chrono::milliseconds time);

  // A batch that the hub sent. INVALID_ARGUMENT for one that says what no rank of another host can have written: the
  // world is then of no more use. Nothing of such an update is written.
  absl::Status Apply(std::string_view batch);

  // Of the hub: the same of a batch of host `from`, and what is for other hosts, by host. Of its own batches (`from` is
  // here) nothing is applied.
  absl::StatusOr<std::map<int, std::string>> Route(int from, std::string_view batch);

 private:
  struct SentChannel {
    uint64_t written = 0, read = 0, posted = 0;
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
  // Whether a rank of host `from` may say this.
  absl::Status Check(int from, const SegmentUpdate& update) const;
  absl::Status Write(const SegmentUpdate& update);
  absl::Status WriteSlot(const SegmentUpdate& update);
  absl::Status WriteArea(const SegmentUpdate& update);
  // The host that the update is for; -1: all.
  int Destination(const SegmentUpdate& update) const;

  const std::shared_ptr<HostSegment> segment_;
  const std::vector<int> host_of_rank_;
  const int here_;
  host_layout::Bell& bell_;
  std::vector<Group> groups_;
  std::vector<uint64_t> beats_, efforts_;
  std::vector<int> hosts_;  // of ranks, each once
  std::chrono::steady_clock::time_point beaten_ = {};
  uint32_t seen_ = 0;
  std::atomic<bool> poison_known_ = false;  // it has been sent, or came from there
};

}  // namespace tessera::parallel
