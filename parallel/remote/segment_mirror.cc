#include "parallel/remote/segment_mirror.h"

#include <algorithm>
#include <cstring>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::parallel {
namespace {

using host_layout::Channel;
using host_layout::Note;
using host_layout::RankArea;
using host_layout::SlotHeader;

constexpr size_t kFullBatch = 512 << 10;
constexpr std::chrono::milliseconds kBeatInterval{20};
constexpr uint64_t kLeastEffort = 20'000'000;  // least nanoseconds that cause an update for a rank without beats
constexpr int kAnyOther = -1;                  // host: the hub forwards updates of all other hosts' ranks

absl::Status Disorder(const char* what) {
  return absl::InvalidArgumentError(absl::StrCat("another host's update of a segment is refused: ", what));
}

}  // namespace

SegmentMirror::SegmentMirror(std::shared_ptr<HostSegment> segment, std::vector<int> host_of_rank, int here)
    : segment_(std::move(segment)),
      host_of_rank_(std::move(host_of_rank)),
      here_(here),
      bell_(segment_->RingForMirror()),
      sent_(host_of_rank_.size()) {
  for (const HostGroup& group : segment_->groups()) {
    Group& made = groups_.emplace_back();
    for (const int rank : group.ranks) made.hosts.push_back(host_of_rank_[static_cast<size_t>(rank)]);
    made.channels.resize(group.ranks.size() * group.ranks.size());
    made.areas.resize(group.ranks.size());
  }
  const std::set<int> hosts(host_of_rank_.begin(), host_of_rank_.end());
  hosts_.assign(hosts.begin(), hosts.end());
}

std::string SegmentMirror::Collect() {
  seen_ = bell_.rings.load();
  std::string batch;
  CollectWorld(batch);
  for (size_t group = 0; group < groups_.size(); ++group) CollectGroup(static_cast<int>(group), batch);
  return batch;
}

void SegmentMirror::Wait(std::chrono::milliseconds time) {
  bell_.sleeping.store(1);
  if (bell_.rings.load() == seen_) FutexWait(bell_.rings, seen_, time);
  bell_.sleeping.store(0, std::memory_order_relaxed);
}

void SegmentMirror::CollectWorld(std::string& batch) {
  if (!poison_known_ && segment_->IsPoisoned()) {
    poison_known_ = true;
    const HostPoison poison = *segment_->poison();
    AppendUpdate({.kind = UpdateKind::kPoison, .from = poison.rank, .bytes = poison.reason}, batch);
  }
  const auto now = std::chrono::steady_clock::now();
  if (now - beaten_ < kBeatInterval) return;
  beaten_ = now;
  for (size_t rank = 0; rank < sent_.size(); ++rank) {
    if (host_of_rank_[rank] != here_) continue;
    const host_layout::LoadReport& load = segment_->Load(static_cast<int>(rank));
    SentBeats& sent = sent_[rank];
    const uint64_t beats = segment_->Beats(static_cast<int>(rank)).load(std::memory_order_relaxed);
    const uint64_t effort = segment_->Effort(static_cast<int>(rank)).load(std::memory_order_relaxed);
    const uint64_t loaded = load.read.load(std::memory_order_relaxed);
    const uint64_t to_load = load.total.load(std::memory_order_relaxed);
    const bool has_loaded = sent.loaded != loaded || sent.to_load != to_load;
    if (sent.beats == beats && effort - sent.effort < kLeastEffort && !has_loaded) continue;
    sent = {.beats = beats, .effort = effort, .loaded = loaded, .to_load = to_load};
    AppendUpdate({.kind = UpdateKind::kBeats,
                  .from = static_cast<int>(rank),
                  .index = beats,
                  .effort = effort,
                  .loaded = loaded,
                  .to_load = to_load},
                 batch);
  }
}

void SegmentMirror::CollectGroup(int group, std::string& batch) {
  const Group& of = groups_[static_cast<size_t>(group)];
  const int size = static_cast<int>(of.hosts.size());
  for (int rank = 0; rank < size; ++rank) {
    if (of.hosts[static_cast<size_t>(rank)] != here_) continue;
    CollectArea(group, rank, batch);
    for (int other = 0; other < size; ++other) {
      if (of.hosts[static_cast<size_t>(other)] == here_) continue;
      CollectChannel(group, rank, other, batch);
      Channel& channel = segment_->ChannelOf(group, other, rank);
      SentChannel& sent = groups_[static_cast<size_t>(group)].channels[static_cast<size_t>(other * size + rank)];
      const uint64_t read = channel.read.load(std::memory_order_acquire);
      const uint64_t posted = channel.posted.load(std::memory_order_acquire);
      if (sent.read == read && sent.posted == posted) continue;
      sent.read = read;
      sent.posted = posted;
      AppendUpdate(
          {.kind = UpdateKind::kRead, .group = group, .from = other, .to = rank, .index = read, .posted = posted},
          batch);
    }
  }
}

void SegmentMirror::CollectChannel(int group, int from, int to, std::string& batch) {
  const Channel& channel = segment_->ChannelOf(group, from, to);
  const size_t size = groups_[static_cast<size_t>(group)].hosts.size();
  SentChannel& sent =
      groups_[static_cast<size_t>(group)].channels[static_cast<size_t>(from) * size + static_cast<size_t>(to)];
  while (batch.size() < kFullBatch && sent.written < channel.written.load(std::memory_order_acquire)) {
    const int slot = static_cast<int>(sent.written % static_cast<uint64_t>(segment_->slots()));
    const SlotHeader& header = segment_->SlotHeaderOf(group, from, to, slot);
    const int64_t bytes = std::clamp<int64_t>(header.bytes, 0, segment_->slot_bytes());
    AppendUpdate({.kind = UpdateKind::kSlot,
                  .group = group,
                  .from = from,
                  .to = to,
                  .index = sent.written,
                  .header = header,
                  .bytes = {reinterpret_cast<const char*>(segment_->SlotData(group, from, to, slot)),
                            static_cast<size_t>(bytes)}},
                 batch);
    ++sent.written;
  }
}

void SegmentMirror::CollectArea(int group, int rank, std::string& batch) {
  const RankArea& area = segment_->Area(group, rank);
  SentArea& sent = groups_[static_cast<size_t>(group)].areas[static_cast<size_t>(rank)];
  SegmentUpdate update = {.kind = UpdateKind::kArea, .group = group, .from = rank};
  update.entered = area.entered.load();
  update.barriers = area.barriers.load();
  update.activity = area.activity.load(std::memory_order_relaxed);
  update.call = area.call.load(std::memory_order_relaxed);
  if (update.entered == sent.entered && update.barriers == sent.barriers && update.activity == sent.activity) return;
  const uint64_t oldest = update.entered > host_layout::kNotes ? update.entered - host_layout::kNotes : 0;
  for (uint64_t sequence = std::max(sent.entered, oldest) + 1; sequence <= update.entered; ++sequence) {
    const Note& note = area.notes[sequence % host_layout::kNotes];
    std::array<uint64_t, host_layout::kNoteWords> words;
    if (note.sequence.load() != sequence) continue;
    for (size_t i = 0; i < words.size(); ++i) words[i] = note.words[i].load(std::memory_order_acquire);
    if (note.sequence.load() == sequence) update.notes.emplace_back(sequence, words);
  }
  sent = {update.entered, update.barriers, update.activity, update.call};
  AppendUpdate(update, batch);
}

bool SegmentMirror::IsOf(int host, int from) const { return from == kAnyOther ? host != here_ : host == from; }

absl::Status SegmentMirror::Check(int from, const SegmentUpdate& update) const {
  const auto ranks = static_cast<int>(host_of_rank_.size());
  if (update.kind == UpdateKind::kPoison) {
    return update.from < ranks ? absl::OkStatus() : Disorder("its poison names an unknown rank");
  }
  if (update.kind == UpdateKind::kBeats) {
    const bool named = update.from >= 0 && update.from < ranks;
    return named && IsOf(host_of_rank_[static_cast<size_t>(update.from)], from)
               ? absl::OkStatus()
               : Disorder("it has heartbeats of another host's rank");
  }
  if (update.group >= static_cast<int>(groups_.size())) return Disorder("it names an unknown group");
  const std::vector<int>& hosts = groups_[static_cast<size_t>(update.group)].hosts;
  const auto size = static_cast<int>(hosts.size());
  if (update.from < 0 || update.from >= size || update.to >= size)
    return Disorder("it names a rank that is not in the group");
  const int from_host = hosts[static_cast<size_t>(update.from)], to_host = hosts[static_cast<size_t>(update.to)];
  if (!IsOf(update.kind == UpdateKind::kRead ? to_host : from_host, from))
    return Disorder("it is for a rank of another host");
  if (update.kind != UpdateKind::kArea && from_host == to_host) return Disorder("both ranks are on one host");
  if (update.kind == UpdateKind::kSlot) {
    const SlotHeader& header = update.header;
    if (header.bytes < 0 || header.bytes > segment_->slot_bytes() ||
        static_cast<size_t>(header.bytes) != update.bytes.size() || header.offset < 0 ||
        header.message_bytes < header.bytes || header.offset > header.message_bytes - header.bytes) {
      return Disorder("a slot has a wrong length");
    }
  } else if (!update.bytes.empty()) {
    return Disorder("it has bytes, and updates of its kind have none");
  }
  return absl::OkStatus();
}

int SegmentMirror::Destination(const SegmentUpdate& update) const {
  switch (update.kind) {
    case UpdateKind::kSlot:
      return groups_[static_cast<size_t>(update.group)].hosts[static_cast<size_t>(update.to)];
    case UpdateKind::kRead:
      return groups_[static_cast<size_t>(update.group)].hosts[static_cast<size_t>(update.from)];
    default:
      return -1;
  }
}

absl::Status SegmentMirror::Apply(std::string_view batch) {
  ASSIGN_OR_RETURN(const std::vector<SegmentUpdate> updates, ReadUpdates(batch));
  for (const SegmentUpdate& update : updates) {
    RETURN_IF_ERROR(Check(kAnyOther, update));
    const int destination = Destination(update);
    if (destination != -1 && destination != here_) return Disorder("it is for another host");
    RETURN_IF_ERROR(Write(update));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::map<int, std::string>> SegmentMirror::Route(int from, std::string_view batch) {
  ASSIGN_OR_RETURN(const std::vector<SegmentUpdate> updates, ReadUpdates(batch));
  std::map<int, std::string> others;
  for (const SegmentUpdate& update : updates) {
    RETURN_IF_ERROR(Check(from, update));
    const int destination = Destination(update);
    if (from != here_ && (destination == here_ || destination == -1)) RETURN_IF_ERROR(Write(update));
    for (const int host : hosts_) {
      if (host != from && host != here_ && (destination == host || destination == -1))
        AppendUpdate(update, others[host]);
    }
  }
  return others;
}

absl::Status SegmentMirror::Write(const SegmentUpdate& update) {
  switch (update.kind) {
    case UpdateKind::kSlot:
      return WriteSlot(update);
    case UpdateKind::kRead: {
      Channel& channel = segment_->ChannelOf(update.group, update.from, update.to);
      if (update.index < channel.read.load() || update.index > channel.written.load() ||
          update.posted < channel.posted.load()) {
        return Disorder("it reports slots as read that were not written");
      }
      channel.posted.store(update.posted, std::memory_order_release);
      channel.read.store(update.index, std::memory_order_release);
      RingBell(segment_->Area(update.group, update.from).bell);
      return absl::OkStatus();
    }
    case UpdateKind::kArea:
      return WriteArea(update);
    case UpdateKind::kBeats:
      segment_->Beats(update.from).store(update.index, std::memory_order_relaxed);
      segment_->Effort(update.from).store(update.effort, std::memory_order_relaxed);
      segment_->Load(update.from).total.store(update.to_load, std::memory_order_relaxed);
      segment_->Load(update.from).read.store(update.loaded, std::memory_order_relaxed);
      return absl::OkStatus();
    case UpdateKind::kPoison:
      poison_known_ = true;
      segment_->Poison(update.from, update.bytes);
      return absl::OkStatus();
  }
  return Disorder("its kind is unknown");
}

absl::Status SegmentMirror::WriteSlot(const SegmentUpdate& update) {
  Channel& channel = segment_->ChannelOf(update.group, update.from, update.to);
  const uint64_t written = channel.written.load(std::memory_order_relaxed);
  const auto slots = static_cast<uint64_t>(segment_->slots());
  if (update.index != written) return Disorder("a slot arrived out of order");
  if (written - channel.read.load(std::memory_order_acquire) >= slots)
    return Disorder("more slots are in use than exist");
  const int slot = static_cast<int>(written % slots);
  if (!update.bytes.empty()) {
    std::memcpy(segment_->SlotData(update.group, update.from, update.to, slot), update.bytes.data(),
                update.bytes.size());
  }
  segment_->SlotHeaderOf(update.group, update.from, update.to, slot) = update.header;
  channel.written.store(written + 1, std::memory_order_release);
  RingBell(segment_->Area(update.group, update.to).bell);
  return absl::OkStatus();
}

absl::Status SegmentMirror::WriteArea(const SegmentUpdate& update) {
  RankArea& area = segment_->Area(update.group, update.from);
  if (update.entered < area.entered.load() || update.barriers < area.barriers.load()) {
    return Disorder("a rank's calls went backwards");
  }
  for (const auto& [sequence, words] : update.notes) {
    Note& note = area.notes[sequence % host_layout::kNotes];
    note.sequence.store(0, std::memory_order_relaxed);
    for (size_t i = 0; i < words.size(); ++i) note.words[i].store(words[i], std::memory_order_release);
    note.sequence.store(sequence);
  }
  area.call.store(update.call, std::memory_order_relaxed);
  area.activity.store(static_cast<uint32_t>(update.activity), std::memory_order_relaxed);
  area.entered.store(update.entered);
  area.barriers.store(update.barriers, std::memory_order_release);
  const int size = static_cast<int>(groups_[static_cast<size_t>(update.group)].hosts.size());
  for (int rank = 0; rank < size; ++rank) {
    if (rank != update.from) RingBell(segment_->Area(update.group, rank).bell);
  }
  return absl::OkStatus();
}

}  // namespace tessera::parallel
