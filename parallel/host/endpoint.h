// HostEndpoint is one rank's end of one group of a host segment. It moves messages of bytes between the ranks, in
// slots, and diagnoses failures. HostCommunicator interprets the bytes; this class does not use tensors.
//
// Not thread-safe: one thread per rank. A rank has at most one endpoint of a group at a time.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "parallel/collective.h"
#include "parallel/segment/segment.h"

namespace tessera::parallel {

// Thrown if an endpoint cannot complete a call. Ranks are those of the world; -1: unknown.
struct HostFailure : std::exception {
  HostFailure(int culprit, std::string reason, bool relayed)
      : culprit(culprit), reason(std::move(reason)), relayed(relayed) {}
  const char* what() const noexcept override { return reason.c_str(); }

  int culprit;
  std::string reason;
  bool relayed;  // another rank or a third party had ended the group
};

// The description of a call, which must be equal on all ranks of a group, or of one message.
struct HostCall {
  static constexpr uint8_t kNoDtype = 255;
  static constexpr int kMaxDims = 8;

  Collective kind = Collective::kBarrier;
  uint8_t dtype = kNoDtype;
  int dims = 0;
  std::array<int64_t, kMaxDims> sizes = {};
  int root = -1;              // within the group
  std::vector<int64_t> rows;  // per rank
  bool operator==(const HostCall&) const = default;
};

// Messages between two ranks are transferred in the order in which they are listed.
struct Outgoing {
  int to;
  const std::byte* data;
  int64_t bytes;
  HostCall call;
  int64_t done = 0;
  bool finished = false;
};

struct Incoming {
  int from;
  std::byte* data;
  int64_t bytes;
  HostCall call;
  int64_t done = 0;
  bool finished = false;
  bool posted = false;
};

// A sum over the ranks, in rank order, of the messages from all other ranks and of `own`. `add` receives one source per
// rank; `result` may be `own`.
struct Summation {
  HostCall call;
  int64_t bytes;
  std::byte* own;
  std::byte* result;
  absl::FunctionRef<void(const std::vector<const std::byte*>& sources, std::byte* result, int64_t bytes)> add;
};

struct HostEndpointOptions {
  std::chrono::nanoseconds deadline = std::chrono::seconds(60);  // of a wait without any progress
  std::optional<std::chrono::nanoseconds> spin;  // before a wait sleeps; by default long if each rank has a core
  std::string (*dtype_name)(uint8_t) = nullptr;
  // If true, a message is sent only once its receiver is in the call that receives it. This is the strictest order that
  // a device's library may require. Must be equal on all ranks of a group.
  bool rendezvous = false;
};

class HostEndpoint {
 public:
  // `rank` is the rank within group `group` of the segment.
  HostEndpoint(std::shared_ptr<HostSegment> segment, int group, int rank, HostEndpointOptions options);

  int rank() const { return rank_; }
  int size() const { return size_; }
  int WorldRank(int rank) const { return segment_->groups()[group_].ranks[rank]; }
  const std::string& group_name() const { return segment_->groups()[group_].name; }
  HostSegment& segment() const { return *segment_; }

  // Begins a collective. Throws if another rank is known to have begun a different one at the same position.
  void BeginCollective(const HostCall& call);
  void BeginPointToPoint(Collective kind);
  // From the beginning of a call to EndCall a rank counts as waiting for others. ContinueCall resumes a call that has
  // left messages in transit.
  void EndCall();
  void ContinueCall(Collective kind);
  int64_t collectives() const { return sequence_; }
  int64_t point_to_point_calls() const { return point_to_point_; }

  // Transfer moves all messages; Advance moves those that can be moved without waiting.
  void Transfer(std::vector<Outgoing>& out, std::vector<Incoming>& in);
  void Advance(std::vector<Outgoing>& out, std::vector<Incoming>& in);
  void TransferAndSum(std::vector<Outgoing>& out, const Summation& sum);

  // Returns once every rank has called it.
  void Barrier();

  // Ends the group for all its ranks and throws.
  [[noreturn]] void Fail(int culprit, std::string reason);
  void ThrowIfPoisoned() const;

 private:
  enum class Step { kDone, kMoved, kIdle };

  // Calls `step` until it is done, and sleeps after calls that find nothing to do. `waits_for` returns a rank of the
  // group that this one is waiting for.
  void Drive(absl::FunctionRef<Step()> step, absl::FunctionRef<int()> waits_for);
  bool SpinUntilRung(uint32_t seen) const;

  void Post(int from);
  bool Push(Outgoing& message);
  bool Pull(Incoming& message);
  bool Move(std::vector<Outgoing>& out, std::vector<Incoming>& in);
  const host_layout::SlotHeader* Arrived(int from);
  const std::byte* ArrivedBytes(int from) const;
  void Release(int from);
  void CheckArrived(const host_layout::SlotHeader& header, int from, const HostCall& call, int64_t bytes, int64_t done);

  void PostNote(const HostCall& call);
  // Returns the words that `rank` posted for its collective `sequence`, unless they have been overwritten.
  using NoteWords = std::array<uint64_t, host_layout::kNoteWords>;
  static NoteWords Words(const HostCall& call);
  static HostCall Call(const NoteWords& words);
  std::optional<NoteWords> ReadNote(int rank, uint64_t sequence) const;
  [[noreturn]] void BlameMismatch(const NoteWords& own);
  [[noreturn]] void BlameMissing(int rank);

  std::string Describe(const HostCall& call) const;
  std::string Doing(int rank) const;
  std::string RankText(int rank) const;
  std::string Seconds() const;

  std::shared_ptr<HostSegment> segment_;
  const int group_, rank_, size_;
  HostEndpointOptions options_;
  host_layout::RankArea& own_;
  uint64_t sequence_ = 0;  // of the current or last collective
  int64_t point_to_point_ = 0;
  uint64_t barriers_ = 0;
  bool in_collective_ = false;
  std::vector<uint64_t> written_, read_;  // slots to and from each rank
};

}  // namespace tessera::parallel
