// HostSegment is the memory through which the ranks of one host exchange tensors, and the flag that ends them all.
//
// A segment serves one world of ranks. It contains a region for each group of ranks (the whole world, or the ranks
// along one axis of a mesh) and for each rank a counter of heartbeats for a monitoring process. Ranks that are threads
// share a heap segment. Ranks that are processes map the same memfd, which is inherited or passed over a Unix socket. A
// memfd has no name, so nothing remains when the last process ends.
//
// Poison ends every wait and every later call of every rank of the world. Every process that maps the segment may
// poison it, including the process that started the ranks. This file does not use tensors. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace tessera::parallel {

inline constexpr int kMaxHostRanks = 64;
inline constexpr int kMaxHostGroups = 512;

// World ranks in the order of their ranks within the group. Groups of the same name are disjoint, such as the groups
// along one axis of a mesh.
struct HostGroup {
  std::string name;  // at most 31 bytes
  std::vector<int> ranks;
};

struct HostSegmentOptions {
  int ranks = 0;  // of the world
  std::vector<HostGroup> groups;
  int64_t slot_bytes = 128 << 10;  // a multiple of 4,096
  int slots = 8;                   // from each rank of a group to each other one: what a Send can buffer
};

struct HostPoison {
  int rank = -1;  // in the world; -1: unknown
  std::string reason;
};

// The contents of a segment, in a layout that is shared by all processes of one build.
namespace host_layout {

struct alignas(128) Bell {  // rung for one rank when something it may wait for has changed
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleeping;
};

// A rank's description of one of its latest collectives, which the other ranks compare with theirs.
inline constexpr int kNotes = 16, kNoteWords = 18;
struct Note {
  std::atomic<uint64_t> sequence;  // 0 while being written
  std::array<std::atomic<uint64_t>, kNoteWords> words;
};

struct alignas(128) RankArea {
  Bell bell;
  alignas(128) std::atomic<uint64_t> entered;  // sequence of the latest collective
  std::atomic<uint64_t> barriers;              // arrived at
  std::atomic<uint32_t> activity;              // 0: in no call; else Collective + 1
  std::atomic<uint64_t> call;                  // its number among the collectives, or among the other calls
  alignas(128) std::array<Note, kNotes> notes;
};

// A rank's report of how much of its model it has loaded, in bytes of the weight files.
struct LoadReport {
  std::atomic<uint64_t> read;
  std::atomic<uint64_t> total;  // 0: it has not begun
};

// A rank's report of its progress.
struct alignas(128) Heart {
  std::atomic<uint64_t> beats;         // operators of the tensor library that it has begun
  std::atomic<uint64_t> effort;        // nanoseconds; see effort_meter.h
  std::atomic<uint32_t> device_waits;  // threads that wait for its device
  LoadReport load;
};

// A queue of slots from one rank to another.
struct Channel {
  alignas(128) std::atomic<uint64_t> written;  // slots, by the sender
  std::atomic<uint64_t> sent;                  // whole messages
  alignas(128) std::atomic<uint64_t> read;     // slots, by the receiver
  std::atomic<uint64_t> posted;                // messages that it has begun to wait for; counted only for rendezvous
};

struct alignas(64) SlotHeader {
  int64_t message_bytes;
  int64_t offset;  // of this slot's bytes in the message
  int64_t bytes;
  uint64_t sequence;  // of a collective; 0: point to point
  uint8_t kind, dtype, dims;
  std::array<int64_t, 8> sizes;
};

struct Header {
  uint64_t magic;
  uint32_t version, ranks, groups, slots;
  uint64_t slot_bytes, total_bytes;
  std::atomic<uint32_t> poison;  // 0: none, 1: being written, 2: written
  int32_t poison_rank;
  std::array<char, 1024> poison_reason;
  std::atomic<uint32_t> mirrored;  // a process forwards changes to other hosts, and `mirror` is rung for it
  Bell mirror;
};

struct GroupEntry {
  std::array<char, 32> name;
  uint32_t size;
  std::array<uint32_t, kMaxHostRanks> ranks;
};

}  // namespace host_layout

class HostSegment {
 public:
  static absl::StatusOr<std::shared_ptr<HostSegment>> CreateInHeap(const HostSegmentOptions& options);

  // Creates a memfd with reserved memory and a sealed size.
  static absl::StatusOr<std::shared_ptr<HostSegment>> CreateShared(const HostSegmentOptions& options);

  // Maps a segment that CreateShared created in another process, after validating it. Keeps its own duplicate of the
  // descriptor.
  static absl::StatusOr<std::shared_ptr<HostSegment>> Map(int descriptor);

  ~HostSegment();
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;

  int descriptor() const { return descriptor_; }  // -1 for a heap segment
  int ranks() const { return ranks_; }
  const std::vector<HostGroup>& groups() const { return groups_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  int slots() const { return slots_; }
  int64_t total_bytes() const { return total_bytes_; }

  // Returns the index of the group of that name that contains `rank`; -1 if there is none.
  int FindGroup(std::string_view name, int rank) const;

  // Only the first reason is kept. `rank` is the culprit; -1: unknown.
  void Poison(int rank, std::string_view reason);
  bool IsPoisoned() const;
  std::optional<HostPoison> poison() const;

  // For one rank of the world. Written only by the rank itself and, in the segments of other hosts, by the mirror.
  std::atomic<uint64_t>& Beats(int rank) const;
  // Nanoseconds of work that a rank has spent outside calls of a communicator (effort_meter.h).
  std::atomic<uint64_t>& Effort(int rank) const;
  // Written as Beats are. A process may write anything: readers check the values.
  host_layout::LoadReport& Load(int rank) const;
  // How many of a rank's threads wait for work that its device has begun. Only read on the rank's own host.
  std::atomic<uint32_t>& DeviceWaits(int rank) const;
  // Whether the rank is in a call of a communicator, in which it may be waiting for another rank.
  bool IsInCall(int rank) const;

  // Notifies a rank of a group, and the mirror if there is one, that something changed.
  void Ring(int group, int rank) const;
  // Makes Ring and Poison also ring the returned bell, for the mirror that waits for it.
  host_layout::Bell& RingForMirror() const;

  // The area of a rank in a group. Ranks are numbered within the group.
  host_layout::RankArea& Area(int group, int rank) const;
  host_layout::Channel& ChannelOf(int group, int from, int to) const;
  host_layout::SlotHeader& SlotHeaderOf(int group, int from, int to, int slot) const;
  std::byte* SlotData(int group, int from, int to, int slot) const;

 private:
  struct Region {
    int64_t areas, channels, headers, data;  // offsets
    int size;
  };

  HostSegment() = default;
  static absl::StatusOr<std::shared_ptr<HostSegment>> Plan(const HostSegmentOptions& options);
  host_layout::Header& header() const;
  host_layout::Heart& HeartOf(int rank) const;
  host_layout::GroupEntry* entries() const;
  void WriteHeader();

  std::byte* base_ = nullptr;
  int descriptor_ = -1;
  int ranks_ = 0, slots_ = 0;
  int64_t hearts_ = 0;  // offset
  int64_t slot_bytes_ = 0, total_bytes_ = 0;
  std::vector<HostGroup> groups_;
  std::vector<Region> regions_;
};

// Sleeps until `word` differs from `seen`, a wake-up, or the timeout. May wake up spuriously.
void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds time);
void FutexWake(std::atomic<uint32_t>& word);

// Notifies the rank of this area that something changed.
void RingBell(host_layout::Bell& bell);

}  // namespace tessera::parallel
