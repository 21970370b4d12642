// The memory through which the ranks of one host exchange tensors, and the flag that ends them all.
//
// A segment serves one world of ranks. It holds a region for each group of them: the whole world, or the ranks along
// one axis of a mesh; and for each rank a counter of heartbeats, for whoever watches them. Ranks that are threads share
// a heap segment. Ranks that are processes map the same memfd, handed over a Unix socket or inherited: it has no name,
// so nothing is left behind when the last of them ends.
//
// Poison ends every wait and every later call of every rank of the world. Whoever holds the segment may poison it, the
// process that started the ranks included: this file knows nothing of tensors. Thread-safe.
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

// Ranks of the world in the order of their ranks within the group. Groups of one name are disjoint, such as the groups
// along one axis of a mesh.
struct HostGroup {
  std::string name;  // at most 31 bytes
  std::vector<int> ranks;
};

struct HostSegmentOptions {
  int ranks = 0;  // of the world
  std::vector<HostGroup> groups;
  int64_t slot_bytes = 128 << 10;  // a multiple of 4,096
  int slots = 8;                   // from each rank of a group to each other one: what a Send holds without a receiver
};

struct HostPoison {
  int rank = -1;  // of the world; -1: unknown
  std::string reason;
};

// What a segment holds, in the layout that all processes of one build share.
namespace host_layout {

struct alignas(128) Bell {  // rung for one rank whenever something changed that it may be waiting for
  std::atomic<uint32_t> rings;
  std::atomic<uint32_t> sleeping;
};

// What a rank says of its latest collectives, for the others to compare.
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

// What a rank reports of its progress.
struct alignas(128) Heart {
  std::atomic<uint64_t> beats;         // operators of the tensor library that it has begun
  std::atomic<uint64_t> effort;        // nanoseconds; see effort_meter.h
  std::atomic<uint32_t> device_waits;  // threads that wait for its device
};

// A queue of slots from one rank to another.
struct Channel {
  alignas(128) std::atomic<uint64_t> written;  // slots, by the sender
  std::atomic<uint64_t> sent;                  // whole messages
  alignas(128) std::atomic<uint64_t> read;     // slots, by the receiver
  std::atomic<uint64_t> posted;                // messages that it has begun to wait for; counted for rendezvous alone
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
  std::atomic<uint32_t> mirrored;  // somebody carries changes to other hosts, and `mirror` is rung for them
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

  // A memfd, its memory reserved and its size sealed.
  static absl::StatusOr<std::shared_ptr<HostSegment>> CreateShared(const HostSegmentOptions& options);

  // Maps what CreateShared made in another process, after checking that it is such a thing. Keeps its own duplicate of
  // the descriptor.
  static absl::StatusOr<std::shared_ptr<HostSegment>> Map(int descriptor);

  ~HostSegment();
  HostSegment(const HostSegment&) = delete;
  HostSegment& operator=(const HostSegment&) = delete;

  int descriptor() const { return descriptor_; }  // -1 in the heap
  int ranks() const { return ranks_; }
  const std::vector<HostGroup>& groups() const { return groups_; }
  int64_t slot_bytes() const { return slot_bytes_; }
  int slots() const { return slots_; }
  int64_t total_bytes() const { return total_bytes_; }

  // The group of that name which holds `rank`; -1: none does.
  int FindGroup(std::string_view name, int rank) const;

  // The first reason stays. `rank`: whose fault it is; -1: nobody knows.
  void Poison(int rank, std::string_view reason);
  bool IsPoisoned() const;
  std::optional<HostPoison> poison() const;

  // Of one rank of the world. Only the rank itself, and the mirror of its host, count up.
  std::atomic<uint64_t>& Beats(int rank) const;
  // Nanoseconds of work that a rank has spent outside calls of a communicator (effort_meter.h).
  std::atomic<uint64_t>& Effort(int rank) const;
  // How many of its threads wait for work that its device has begun. Read on its own host alone.
  std::atomic<uint32_t>& DeviceWaits(int rank) const;
  // Whether it is within a call of a communicator, where it may be waiting for another rank.
  bool IsInCall(int rank) const;

  // Tells a rank of a group that something changed, and who carries changes to other hosts.
  void Ring(int group, int rank) const;
  // Makes Ring and Poison ring this bell too, for the one that waits for it.
  host_layout::Bell& RingForMirror() const;

  // The area of a rank in a group; ranks are numbered within the group.
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

// Sleeps until `word` differs from `seen`, a wake, or the time; may also return for no reason.
void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds time);
void FutexWake(std::atomic<uint32_t>& word);

// Tells the rank of this area that something changed.
void RingBell(host_layout::Bell& bell);

}  // namespace tessera::parallel
