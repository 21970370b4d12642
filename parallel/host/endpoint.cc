#include "parallel/host/endpoint.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/machine/machine_processors.h"
#include "base/macros/planted.h"
#include "base/text/string_views.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tessera::parallel {
namespace {

using host_layout::Channel;
using host_layout::Note;
using host_layout::SlotHeader;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::microseconds kSpinWithOwnCore{200}, kSpinWithSharedCore{2};
// How long a rank that sees two different calls waits for the other ranks, in order to find the one that differs.
constexpr std::chrono::seconds kWaitForVerdict{1};

void Pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Calls `move` for the messages that may move now: the first unfinished message of each peer.
template <class Message>
bool MoveFirsts(std::vector<Message>& messages, int Message::*peer, absl::FunctionRef<bool(Message&)> move) {
  static_assert(kMaxHostRanks <= 64);
  bool moved = false;
  uint64_t waiting = 0;  // peers with an earlier unfinished message
  for (Message& message : messages) {
    const uint64_t bit = uint64_t{1} << (message.*peer);
    if (message.finished || (waiting & bit) != 0) continue;
    moved = move(message) || moved;
    if (!message.finished) waiting |= bit;
  }
  return moved;
}

}  // namespace

HostEndpoint::HostEndpoint(std::shared_ptr<HostSegment> segment, int group, int rank, HostEndpointOptions options)
    : segment_(std::move(segment)),
      group_(group),
      rank_(rank),
      size_(static_cast<int>(segment_->groups()[group].ranks.size())),
      options_(options),
      own_(segment_->Area(group, rank)) {
  if (!options_.spin) {
    const bool own_core = segment_->ranks() <= base::ReadMachineProcessors().available();
    options_.spin = own_core ? kSpinWithOwnCore : kSpinWithSharedCore;
  }
  sequence_ = own_.entered.load();
  barriers_ = own_.barriers.load();
  for (int r = 0; r < size_; ++r) {
    written_.push_back(segment_->ChannelOf(group_, rank_, r).written.load());
    read_.push_back(segment_->ChannelOf(group_, r, rank_).read.load());
  }
}

void HostEndpoint::ThrowIfPoisoned() const {
  if (!segment_->IsPoisoned()) return;
  const HostPoison poison = *segment_->poison();
  throw HostFailure(poison.rank, poison.reason, true);
}

void HostEndpoint::Fail(int culprit, std::string reason) {
  segment_->Poison(culprit, reason);
  throw HostFailure(culprit, std::move(reason), false);
}

void HostEndpoint::BeginCollective(const HostCall& call) {
  ++sequence_;
  in_collective_ = true;
  ThrowIfPoisoned();
  own_.call.store(sequence_, std::memory_order_relaxed);
  ContinueCall(call.kind);
  PostNote(call);
  own_.entered.store(sequence_);
  const NoteWords words = Words(call);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    const std::optional<NoteWords> other = ReadNote(r, sequence_);
    if (other && *other != words) BlameMismatch(words);
  }
}

void HostEndpoint::BeginPointToPoint(Collective kind) {
  ++point_to_point_;
  in_collective_ = false;
  ThrowIfPoisoned();
  own_.call.store(static_cast<uint64_t>(point_to_point_), std::memory_order_relaxed);
  ContinueCall(kind);
}

void HostEndpoint::ContinueCall(Collective kind) {
  own_.activity.store(static_cast<uint32_t>(kind) + 1, std::memory_order_relaxed);
}

void HostEndpoint::EndCall() { own_.activity.store(0, std::memory_order_relaxed); }

// A rank posts its own note and then reads the others' with sequentially consistent operations, so that of two ranks
// that begin at the same time at least one sees the other.
void HostEndpoint::PostNote(const HostCall& call) {
  const NoteWords words = Words(call);
  Note& note = own_.notes[sequence_ % host_layout::kNotes];
  note.sequence.store(0, std::memory_order_relaxed);
  for (size_t i = 0; i < words.size(); ++i) note.words[i].store(words[i], std::memory_order_release);
  note.sequence.store(sequence_);
}

std::optional<HostEndpoint::NoteWords> HostEndpoint::ReadNote(int rank, uint64_t sequence) const {
  const Note& note = segment_->Area(group_, rank).notes[sequence % host_layout::kNotes];
  if (note.sequence.load() != sequence) return std::nullopt;
  NoteWords words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = note.words[i].load(std::memory_order_acquire);
  if (note.sequence.load() != sequence) return std::nullopt;
  return words;
}

HostEndpoint::NoteWords HostEndpoint::Words(const HostCall& call) {
  NoteWords words = {};
  words[0] = static_cast<uint64_t>(call.kind) | static_cast<uint64_t>(call.dtype) << 8 |
             static_cast<uint64_t>(call.dims) << 16 | static_cast<uint64_t>(call.rows.size()) << 24 |
             static_cast<uint64_t>(call.root + 1) << 32;
  for (int i = 0; i < call.dims; ++i) words[1 + i] = static_cast<uint64_t>(call.sizes[i]);
  uint64_t digest = 0;
  for (size_t r = 0; r < call.rows.size(); ++r) {
    if (r < 8) words[9 + r] = static_cast<uint64_t>(call.rows[r]);
    digest = (digest ^ static_cast<uint64_t>(call.rows[r])) * 0x9E3779B97F4A7C15 + 1;
  }
  words[17] = digest;
  return words;
}

HostCall HostEndpoint::Call(const NoteWords& words) {
  HostCall call;
  call.kind = static_cast<Collective>(std::min<uint64_t>(words[0] & 255, kCollectives - 1));
  call.dtype = static_cast<uint8_t>(words[0] >> 8);
  call.dims = static_cast<int>(std::min<uint64_t>(words[0] >> 16 & 255, HostCall::kMaxDims));
  call.root = static_cast<int>(words[0] >> 32) - 1;
  for (int i = 0; i < call.dims; ++i) call.sizes[i] = static_cast<int64_t>(words[1 + i]);
  const uint64_t rows = std::min<uint64_t>(words[0] >> 24 & 255, 8);
  for (uint64_t r = 0; r < rows; ++r) call.rows.push_back(static_cast<int64_t>(words[9 + r]));
  return call;
}

std::string HostEndpoint::RankText(int rank) const { return absl::StrCat("rank ", WorldRank(rank)); }

std::string HostEndpoint::Describe(const HostCall& call) const {
  const std::string_view name = Name(call.kind);
  std::string text(name);
  if (call.dtype != HostCall::kNoDtype) {
    absl::StrAppend(&text, " of ", options_.dtype_name ? options_.dtype_name(call.dtype) : absl::StrCat(call.dtype));
    if (call.dims > 0)
      absl::StrAppend(&text, " [", absl::StrJoin(call.sizes.begin(), call.sizes.begin() + call.dims, ", "), "]");
  }
  if (!call.rows.empty()) absl::StrAppend(&text, " by rows [", absl::StrJoin(call.rows, ", "), "]");
  if (call.root >= 0) absl::StrAppend(&text, " from ", call.root < size_ ? RankText(call.root) : "nobody");
  return text;
}

std::string HostEndpoint::Seconds() const {
  return absl::StrCat(std::chrono::duration<double>(options_.deadline).count(), " s");
}

void HostEndpoint::BlameMismatch(const NoteWords& own) {
  std::vector<std::optional<NoteWords>> notes(size_);
  notes[rank_] = own;
  const Clock::time_point end = Clock::now() + std::min<std::chrono::nanoseconds>(kWaitForVerdict, options_.deadline);
  for (bool all = false; !all; Pause()) {
    all = true;
    for (int r = 0; r < size_; ++r) {
      if (!notes[r]) notes[r] = ReadNote(r, sequence_);
      all = all && notes[r];
    }
    if (Clock::now() > end) break;
  }
  const auto count = [&notes](const NoteWords& words) {
    return std::count_if(notes.begin(), notes.end(), [&](const auto& note) { return note && *note == words; });
  };
  int odd = -1, usual = -1;  // the least and the most common call
  for (int r = 0; r < size_; ++r) {
    if (!notes[r]) continue;
    if (odd < 0 || count(*notes[r]) < count(*notes[odd])) odd = r;
    if (usual < 0 || count(*notes[r]) > count(*notes[usual])) usual = r;
  }
  const bool known = count(*notes[odd]) < count(*notes[usual]);
  if (!known)
    for (int r = size_ - 1; *notes[odd] == *notes[usual]; --r)
      if (notes[r]) odd = r;
  const std::string usual_ranks = known && count(*notes[usual]) == size_ - 1 ? "the others" : RankText(usual);
  Fail(known ? WorldRank(odd) : -1,
       absl::StrCat(RankText(odd), " issued ", Describe(Call(*notes[odd])), " while ", usual_ranks, " issued ",
                    Describe(Call(*notes[usual])), " (collective ", sequence_, " of group ", group_name(), ")"));
}

void HostEndpoint::BlameMissing(int rank) {
  std::vector<std::string> absent;
  int culprit = rank;
  if (in_collective_) {
    for (int r = size_ - 1; r >= 0; --r) {
      if (r == rank_ || segment_->Area(group_, r).entered.load() >= sequence_) continue;
      absent.insert(absent.begin(), RankText(r));
      culprit = r;
    }
  }
  const std::string who = absent.empty() ? RankText(culprit) : absl::StrJoin(absent, " and ");
  Fail(WorldRank(culprit),
       absl::StrCat(who, absent.empty() ? " made no progress for " : " did not arrive within ", Seconds(), " (",
                    absent.size() > 1 ? RankText(culprit) + " is" : std::string("it is"), " in ", Doing(culprit), ")"));
}

// Describes the call that a rank is in, in this group or in another group of the rank.
std::string HostEndpoint::Doing(int rank) const {
  const int world_rank = WorldRank(rank);
  for (size_t g = 0; g < segment_->groups().size(); ++g) {
    const std::vector<int>& ranks = segment_->groups()[g].ranks;
    const auto found = std::ranges::find(ranks, world_rank);
    if (found == ranks.end()) continue;
    const host_layout::RankArea& area = segment_->Area(static_cast<int>(g), static_cast<int>(found - ranks.begin()));
    const uint32_t activity = area.activity.load(std::memory_order_relaxed);
    if (activity == 0 || activity > kCollectives) continue;
    return absl::StrCat(base::AbslView(Name(static_cast<Collective>(activity - 1))), " ",
                        area.call.load(std::memory_order_relaxed), " of group ", segment_->groups()[g].name);
  }
  return absl::StrCat("no call of group ", group_name());
}

bool HostEndpoint::SpinUntilRung(uint32_t seen) const {
  if (options_.spin->count() == 0) return false;
  const Clock::time_point end = Clock::now() + *options_.spin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (own_.bell.rings.load(std::memory_order_relaxed) != seen) return true;
      Pause();
    }
  } while (Clock::now() < end);
  return false;
}

void HostEndpoint::Drive(absl::FunctionRef<Step()> step, absl::FunctionRef<int()> waits_for) {
  std::optional<Clock::time_point> end;
  for (;;) {
    const uint32_t seen = own_.bell.rings.load();
    ThrowIfPoisoned();
    const Step moved = step();
    if (moved == Step::kDone) return;
    if (moved == Step::kMoved) {
      end.reset();
      continue;
    }
    if (!end) end = Clock::now() + options_.deadline;
    if (SpinUntilRung(seen)) continue;
    const Clock::time_point now = Clock::now();
    if (now >= *end) BlameMissing(waits_for());
    own_.bell.sleeping.store(1);
    if (own_.bell.rings.load() == seen) FutexWait(own_.bell.rings, seen, *end - now);
    own_.bell.sleeping.store(0, std::memory_order_relaxed);
  }
}

// Announces that this rank receives the next message of `from`.
void HostEndpoint::Post(int from) {
  if (!options_.rendezvous) return;
  segment_->ChannelOf(group_, from, rank_).posted.fetch_add(1, std::memory_order_release);
  segment_->Ring(group_, from);
}

bool HostEndpoint::Push(Outgoing& message) {
  Channel& channel = segment_->ChannelOf(group_, rank_, message.to);
  if (options_.rendezvous && message.done == 0 &&
      channel.posted.load(std::memory_order_acquire) <= channel.sent.load(std::memory_order_relaxed)) {
    return false;
  }
  uint64_t& written = written_[message.to];
  const uint64_t full = written - channel.read.load(std::memory_order_acquire);
  if (full >= static_cast<uint64_t>(segment_->slots())) return false;
  const int slot = static_cast<int>(written % segment_->slots());
  const int64_t bytes = std::min(segment_->slot_bytes(), message.bytes - message.done);
  if (bytes > 0) {
    std::memcpy(segment_->SlotData(group_, rank_, message.to, slot), message.data + message.done,
                static_cast<size_t>(bytes));
  }
  SlotHeader& header = segment_->SlotHeaderOf(group_, rank_, message.to, slot);
  header.message_bytes = message.bytes;
  header.offset = message.done;
  header.bytes = bytes;
  header.sequence = PointToPoint(message.call.kind) ? 0 : sequence_;
  header.kind = static_cast<uint8_t>(message.call.kind);
  header.dtype = message.call.dtype;
  header.dims = static_cast<uint8_t>(message.call.dims);
  header.sizes = message.call.sizes;
  message.done += bytes;
  message.finished = message.done == message.bytes;
  if (message.finished) channel.sent.fetch_add(1, std::memory_order_relaxed);
  channel.written.store(++written, std::memory_order_release);
  segment_->Ring(group_, message.to);
  return true;
}

const SlotHeader* HostEndpoint::Arrived(int from) {
  const uint64_t full = segment_->ChannelOf(group_, from, rank_).written.load(std::memory_order_acquire) - read_[from];
  if (full == 0) return nullptr;
  if (full > static_cast<uint64_t>(segment_->slots()))
    Fail(WorldRank(from), absl::StrCat("the slots of ", RankText(from), " are corrupt"));
  return &segment_->SlotHeaderOf(group_, from, rank_, static_cast<int>(read_[from] % segment_->slots()));
}

const std::byte* HostEndpoint::ArrivedBytes(int from) const {
  return segment_->SlotData(group_, from, rank_, static_cast<int>(read_[from] % segment_->slots()));
}

void HostEndpoint::Release(int from) {
  segment_->ChannelOf(group_, from, rank_).read.store(++read_[from], std::memory_order_release);
  segment_->Ring(group_, from);
}

void HostEndpoint::CheckArrived(const SlotHeader& header, int from, const HostCall& call, int64_t bytes, int64_t done) {
  HostCall arrived;
  arrived.kind = static_cast<Collective>(std::min<int>(header.kind, kCollectives - 1));
  arrived.dtype = header.dtype;
  arrived.dims = std::min<int>(header.dims, HostCall::kMaxDims);
  arrived.sizes = header.sizes;
  const uint64_t sequence = PointToPoint(call.kind) ? 0 : sequence_;
  const bool same_kind = arrived.kind == call.kind || (PointToPoint(arrived.kind) && PointToPoint(call.kind));
  if (!same_kind || header.sequence != sequence || arrived.dtype != call.dtype || arrived.dims != call.dims ||
      arrived.sizes != call.sizes || header.message_bytes != bytes) {
    std::string where;
    if (header.sequence != sequence)
      where = absl::StrCat(" (its collective ", header.sequence, ", this rank's ", sequence, ")");
    const HostCall expected{.kind = call.kind, .dtype = call.dtype, .dims = call.dims, .sizes = call.sizes};
    Fail(-1, absl::StrCat(RankText(from), " sent a part for ", Describe(arrived), " while ", RankText(rank_),
                          " expected one for ", Describe(expected), where, " (group ", group_name(), ")"));
  }
  if (header.offset != done || header.bytes < 0 || header.bytes > segment_->slot_bytes() ||
      header.bytes > bytes - done || (header.bytes == 0 && bytes > 0))
    Fail(WorldRank(from), absl::StrCat("a slot of ", RankText(from), " is corrupt"));
}

bool HostEndpoint::Pull(Incoming& message) {
  const SlotHeader* header = Arrived(message.from);
  if (header == nullptr) return false;
  CheckArrived(*header, message.from, message.call, message.bytes, message.done);
  if (header->bytes > 0) {
    std::memcpy(message.data + message.done, ArrivedBytes(message.from), static_cast<size_t>(header->bytes));
  }
  message.done += header->bytes;
  message.finished = message.done == message.bytes;
  Release(message.from);
  return true;
}

bool HostEndpoint::Move(std::vector<Outgoing>& out, std::vector<Incoming>& in) {
  for (Incoming& message : in) {
    if (!std::exchange(message.posted, true)) Post(message.from);
  }
  const bool pushed = MoveFirsts<Outgoing>(out, &Outgoing::to, [this](Outgoing& message) { return Push(message); });
  const bool pulled = MoveFirsts<Incoming>(in, &Incoming::from, [this](Incoming& message) { return Pull(message); });
  return pushed || pulled;
}

void HostEndpoint::Advance(std::vector<Outgoing>& out, std::vector<Incoming>& in) {
  ThrowIfPoisoned();
  while (Move(out, in)) {
  }
}

void HostEndpoint::Transfer(std::vector<Outgoing>& out, std::vector<Incoming>& in) {
  const auto waits_for = [&] {
    for (const Incoming& message : in)
      if (!message.finished) return message.from;
    for (const Outgoing& message : out)
      if (!message.finished) return message.to;
    return rank_;
  };
  Drive(
      [&] {
        const bool moved = Move(out, in);
        const auto finished = [](const auto& message) { return message.finished; };
        if (std::all_of(out.begin(), out.end(), finished) && std::all_of(in.begin(), in.end(), finished))
          return Step::kDone;
        return moved ? Step::kMoved : Step::kIdle;
      },
      waits_for);
}

void HostEndpoint::TransferAndSum(std::vector<Outgoing>& out, const Summation& sum) {
  int64_t done = 0;
  bool summed = false;
  std::vector<Incoming> none;
  std::vector<const std::byte*> sources(size_);
  for (int r = 0; r < size_; ++r)
    if (r != rank_) Post(r);
  const auto first_silent = [&] {
    for (int r = 0; r < size_; ++r)
      if (r != rank_ && Arrived(r) == nullptr) return r;
    return -1;
  };
  const auto add_slots = [&] {
    int64_t bytes = 0;
    for (int r = 0; r < size_; ++r) {
      if (r == rank_) continue;
      const SlotHeader& header = *Arrived(r);
      CheckArrived(header, r, sum.call, sum.bytes, done);
      bytes = std::min(segment_->slot_bytes(), sum.bytes - done);
      if (header.bytes != bytes) Fail(WorldRank(r), absl::StrCat("a slot of ", RankText(r), " is corrupt"));
      sources[r] = ArrivedBytes(r);
    }
    sources[rank_] = sum.own + done;
    if (base::Planted("sum_starts_with_own_rank")) std::rotate(sources.begin(), sources.begin() + rank_, sources.end());
    sum.add(sources, sum.result + done, bytes);
    done += bytes;
    summed = done == sum.bytes;
    for (int r = 0; r < size_; ++r)
      if (r != rank_) Release(r);
  };
  Drive(
      [&] {
        bool moved = Move(out, none);
        if (!summed && first_silent() < 0) {
          add_slots();
          moved = true;
        }
        if (summed && std::all_of(out.begin(), out.end(), [](const Outgoing& m) { return m.finished; }))
          return Step::kDone;
        return moved ? Step::kMoved : Step::kIdle;
      },
      [&] {
        if (!summed) return first_silent();
        for (const Outgoing& message : out)
          if (!message.finished) return message.to;
        return rank_;
      });
}

void HostEndpoint::Barrier() {
  own_.barriers.store(++barriers_);
  for (int r = 0; r < size_; ++r)
    if (r != rank_) segment_->Ring(group_, r);
  const auto first_absent = [&] {
    for (int r = 0; r < size_; ++r)
      if (segment_->Area(group_, r).barriers.load(std::memory_order_acquire) < barriers_) return r;
    return -1;
  };
  Drive([&] { return first_absent() < 0 ? Step::kDone : Step::kIdle; }, first_absent);
}

}  // namespace tessera::parallel
