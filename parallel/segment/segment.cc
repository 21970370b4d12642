#include "parallel/segment/segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::parallel {
namespace {

using host_layout::Bell;
using host_layout::Channel;
using host_layout::GroupEntry;
using host_layout::Header;
using host_layout::Heart;
using host_layout::RankArea;
using host_layout::SlotHeader;

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

constexpr uint64_t kMagic = 0x746e656d67655354;  // "TSegment"
constexpr uint32_t kVersion = 5;
constexpr int64_t kPage = 4096;
constexpr int64_t kMaxSlotBytes = int64_t{64} << 20;
constexpr int kMaxSlots = 256;
constexpr int64_t kMaxTotalBytes = int64_t{1} << 40;
constexpr int kSizeSeals = F_SEAL_SHRINK | F_SEAL_GROW;

int64_t PageUp(int64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

absl::Status SystemError(absl::string_view what) {
  const int error = errno;
  const std::string text = absl::StrCat(what, ": ", std::strerror(error));
  return error == ENOSPC || error == ENOMEM || error == EFBIG ? absl::ResourceExhaustedError(text)
                                                              : absl::InternalError(text);
}

// Returns the available memory of the whole machine in bytes, without what could be freed only by swapping; nullopt:
// unknown.
std::optional<int64_t> AvailableMemory() {
  std::ifstream info("/proc/meminfo");
  std::string name, unit;
  for (int64_t kilobytes; info >> name >> kilobytes && std::getline(info, unit);)
    if (name == "MemAvailable:") return kilobytes * 1024;
  return std::nullopt;
}

absl::Status CheckGroup(const HostGroup& group, int ranks, std::set<std::pair<std::string, int>>& members) {
  if (group.name.empty() || group.name.size() >= GroupEntry().name.size())
    return absl::InvalidArgumentError(absl::StrCat("group name '", group.name, "' must have 1 to 31 bytes"));
  if (group.ranks.empty() || static_cast<int>(group.ranks.size()) > kMaxHostRanks)
    return absl::InvalidArgumentError(absl::StrCat("group ", group.name, " must have 1 to ", kMaxHostRanks, " ranks"));
  for (const int rank : group.ranks) {
    if (rank < 0 || rank >= ranks)
      return absl::InvalidArgumentError(
          absl::StrCat("group ", group.name, " names rank ", rank, " of a world of ", ranks));
    if (!members.emplace(group.name, rank).second)
      return absl::InvalidArgumentError(absl::StrCat("rank ", rank, " is twice in groups named ", group.name));
  }
  return absl::OkStatus();
}

}  // namespace

void FutexWait(std::atomic<uint32_t>& word, uint32_t seen, std::chrono::nanoseconds time) {
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(time);
  const timespec limit = {static_cast<time_t>(seconds.count()), static_cast<long>((time - seconds).count())};
  syscall(SYS_futex, &word, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void FutexWake(std::atomic<uint32_t>& word) { syscall(SYS_futex, &word, FUTEX_WAKE, 1, nullptr, nullptr, 0); }

void RingBell(Bell& bell) {
  bell.rings.fetch_add(1);
  if (bell.sleeping.load() != 0) FutexWake(bell.rings);
}

absl::StatusOr<std::shared_ptr<HostSegment>> HostSegment::Plan(const HostSegmentOptions& options) {
  if (options.ranks < 1 || options.ranks > kMaxHostRanks)
    return absl::InvalidArgumentError(absl::StrCat(options.ranks, " ranks; a host segment has 1 to ", kMaxHostRanks));
  if (options.slot_bytes < kPage || options.slot_bytes > kMaxSlotBytes || options.slot_bytes % kPage != 0)
    return absl::InvalidArgumentError(absl::StrCat(
        "slots of ", options.slot_bytes, " bytes; valid values are multiples of ", kPage, " up to ", kMaxSlotBytes));
  if (options.slots < 2 || options.slots > kMaxSlots)
    return absl::InvalidArgumentError(absl::StrCat(options.slots, " slots; valid values are 2 to ", kMaxSlots));
  if (static_cast<int>(options.groups.size()) > kMaxHostGroups)
    return absl::InvalidArgumentError(
        absl::StrCat(options.groups.size(), " groups; valid values are at most ", kMaxHostGroups));

  std::shared_ptr<HostSegment> segment(new HostSegment);
  segment->ranks_ = options.ranks;
  segment->slots_ = options.slots;
  segment->slot_bytes_ = options.slot_bytes;
  segment->groups_ = options.groups;
  std::set<std::pair<std::string, int>> members;
  int64_t offset = PageUp(sizeof(Header) + sizeof(GroupEntry) * options.groups.size());
  const auto take = [&offset](int64_t bytes) {
    const int64_t begin = offset;
    offset = PageUp(offset + bytes);
    return begin;
  };
  segment->hearts_ = take(options.ranks * static_cast<int64_t>(sizeof(Heart)));
  for (const HostGroup& group : options.groups) {
    RETURN_IF_ERROR(CheckGroup(group, options.ranks, members));
    const int64_t size = group.ranks.size(), pairs = size * size;
    Region region;
    region.size = static_cast<int>(size);
    region.areas = take(size * static_cast<int64_t>(sizeof(RankArea)));
    region.channels = take(pairs * static_cast<int64_t>(sizeof(Channel)));
    region.headers = take(pairs * options.slots * static_cast<int64_t>(sizeof(SlotHeader)));
    region.data = take(size * (size - 1) * options.slots * options.slot_bytes);
    segment->regions_.push_back(region);
    if (offset > kMaxTotalBytes)
      return absl::InvalidArgumentError(absl::StrCat("a host segment of more than ", kMaxTotalBytes, " bytes"));
  }
  segment->total_bytes_ = offset;
  return segment;
}

absl::StatusOr<std::shared_ptr<HostSegment>> HostSegment::CreateInHeap(const HostSegmentOptions& options) {
  auto segment = Plan(options);
  if (!segment.ok()) return segment;
  void* base = mmap(nullptr, (*segment)->total_bytes_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return SystemError("memory for a host segment");
  (*segment)->base_ = static_cast<std::byte*>(base);
  (*segment)->WriteHeader();
  return segment;
}

absl::StatusOr<std::shared_ptr<HostSegment>> HostSegment::CreateShared(const HostSegmentOptions& options) {
  auto planned = Plan(options);
  if (!planned.ok()) return planned;
  HostSegment& segment = **planned;
  const std::string need =
      absl::StrCat("shared memory of ", segment.total_bytes_, " bytes for ", options.ranks, " ranks");
  const std::optional<int64_t> available = AvailableMemory();
  if (available && *available < segment.total_bytes_)
    return absl::ResourceExhaustedError(absl::StrCat(need, ": only ", *available, " are available"));
  segment.descriptor_ = memfd_create("tessera", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (segment.descriptor_ < 0) return SystemError("memfd for a host segment");
  // Reserved now, because missing memory would later end a rank with a signal.
  if (const int error = posix_fallocate(segment.descriptor_, 0, segment.total_bytes_); error != 0) {
    errno = error;
    return SystemError(need);
  }
  if (fcntl(segment.descriptor_, F_ADD_SEALS, kSizeSeals | F_SEAL_SEAL) != 0) return SystemError("sealing a segment");
  void* base = mmap(nullptr, segment.total_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, segment.descriptor_, 0);
  if (base == MAP_FAILED) return SystemError("mapping a host segment");
  segment.base_ = static_cast<std::byte*>(base);
  segment.WriteHeader();
  return planned;
}

absl::StatusOr<std::shared_ptr<HostSegment>> HostSegment::Map(int descriptor) {
  struct stat info;
  if (fstat(descriptor, &info) != 0) return SystemError("the segment's descriptor");
  const int seals = fcntl(descriptor, F_GET_SEALS);
  if (seals < 0 || (seals & kSizeSeals) != kSizeSeals)
    return absl::InvalidArgumentError("the descriptor is not of a host segment: its size is not sealed");
  const auto reject = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("the descriptor is not of a usable host segment: ", why));
  };
  if (info.st_size < static_cast<int64_t>(sizeof(Header))) return reject("it is too small");
  void* mapped = mmap(nullptr, info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (mapped == MAP_FAILED) return SystemError("mapping a host segment");
  const std::shared_ptr<void> unmap(mapped, [size = info.st_size](void* base) { munmap(base, size); });

  const Header& header = *static_cast<const Header*>(mapped);
  if (header.magic != kMagic) return reject("its header has another magic number");
  if (header.version != kVersion)
    return reject(absl::StrCat("its version is ", header.version, ", this program's is ", kVersion));
  HostSegmentOptions options;
  const uint32_t groups = header.groups;
  if (header.ranks > kMaxHostRanks || groups > kMaxHostGroups || header.slots > kMaxSlots ||
      header.slot_bytes > kMaxSlotBytes ||
      info.st_size < static_cast<int64_t>(sizeof(Header) + sizeof(GroupEntry) * groups))
    return reject("its header has numbers out of range");
  options.ranks = static_cast<int>(header.ranks);
  options.slots = static_cast<int>(header.slots);
  options.slot_bytes = static_cast<int64_t>(header.slot_bytes);
  const auto* entries = reinterpret_cast<const GroupEntry*>(&header + 1);
  for (uint32_t g = 0; g < groups; ++g) {
    const GroupEntry entry = entries[g];
    if (entry.size > kMaxHostRanks || entry.name.back() != 0) return reject("a group's entry is out of range");
    HostGroup group{.name = entry.name.data()};
    for (uint32_t r = 0; r < entry.size; ++r)
      group.ranks.push_back(static_cast<int>(std::min<uint32_t>(entry.ranks[r], kMaxHostRanks)));
    options.groups.push_back(std::move(group));
  }
  auto segment = Plan(options);
  if (!segment.ok()) return reject(segment.status().message());
  if ((*segment)->total_bytes_ != info.st_size)
    return reject(absl::StrCat("it has ", info.st_size, " bytes instead of ", (*segment)->total_bytes_));

  (*segment)->descriptor_ = fcntl(descriptor, F_DUPFD_CLOEXEC, 0);
  if ((*segment)->descriptor_ < 0) return SystemError("the segment's descriptor");
  void* base = mmap(nullptr, info.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (base == MAP_FAILED) return SystemError("mapping a host segment");
  (*segment)->base_ = static_cast<std::byte*>(base);
  return segment;
}

HostSegment::~HostSegment() {
  if (base_ != nullptr) munmap(base_, total_bytes_);
  if (descriptor_ >= 0) close(descriptor_);
}

Header& HostSegment::header() const { return *reinterpret_cast<Header*>(base_); }

GroupEntry* HostSegment::entries() const { return reinterpret_cast<GroupEntry*>(base_ + sizeof(Header)); }

void HostSegment::WriteHeader() {
  Header& to = header();
  to.version = kVersion;
  to.ranks = static_cast<uint32_t>(ranks_);
  to.groups = static_cast<uint32_t>(groups_.size());
  to.slots = static_cast<uint32_t>(slots_);
  to.slot_bytes = static_cast<uint64_t>(slot_bytes_);
  to.total_bytes = static_cast<uint64_t>(total_bytes_);
  for (size_t g = 0; g < groups_.size(); ++g) {
    GroupEntry& entry = entries()[g];
    std::copy(groups_[g].name.begin(), groups_[g].name.end(), entry.name.begin());
    entry.size = static_cast<uint32_t>(groups_[g].ranks.size());
    std::copy(groups_[g].ranks.begin(), groups_[g].ranks.end(), entry.ranks.begin());
  }
  to.magic = kMagic;
}

int HostSegment::FindGroup(std::string_view name, int rank) const {
  for (size_t g = 0; g < groups_.size(); ++g)
    if (groups_[g].name == name && std::count(groups_[g].ranks.begin(), groups_[g].ranks.end(), rank) > 0)
      return static_cast<int>(g);
  return -1;
}

void HostSegment::Poison(int rank, std::string_view reason) {
  Header& to = header();
  uint32_t none = 0;
  if (!to.poison.compare_exchange_strong(none, 1)) return;
  to.poison_rank = rank;
  reason = reason.substr(0, to.poison_reason.size() - 1);
  std::copy(reason.begin(), reason.end(), to.poison_reason.begin());
  to.poison.store(2);
  for (size_t g = 0; g < regions_.size(); ++g)
    for (int r = 0; r < regions_[g].size; ++r) {
      Bell& bell = Area(static_cast<int>(g), r).bell;
      bell.rings.fetch_add(1);
      FutexWake(bell.rings);
    }
  if (to.mirrored.load() != 0) RingBell(to.mirror);
}

bool HostSegment::IsPoisoned() const { return header().poison.load(std::memory_order_acquire) != 0; }

std::optional<HostPoison> HostSegment::poison() const {
  const Header& from = header();
  if (!IsPoisoned()) return std::nullopt;
  // Written within microseconds, unless the writer died at that moment.
  const auto limit = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (from.poison.load(std::memory_order_acquire) != 2 && std::chrono::steady_clock::now() < limit) {
  }
  if (from.poison.load(std::memory_order_acquire) != 2) return HostPoison{.reason = "the group was ended"};
  const size_t length = strnlen(from.poison_reason.data(), from.poison_reason.size());
  return HostPoison{.rank = from.poison_rank, .reason = std::string(from.poison_reason.data(), length)};
}

host_layout::Heart& HostSegment::HeartOf(int rank) const { return reinterpret_cast<Heart*>(base_ + hearts_)[rank]; }

std::atomic<uint64_t>& HostSegment::Beats(int rank) const { return HeartOf(rank).beats; }

std::atomic<uint64_t>& HostSegment::Effort(int rank) const { return HeartOf(rank).effort; }

host_layout::LoadReport& HostSegment::Load(int rank) const { return HeartOf(rank).load; }

std::atomic<uint32_t>& HostSegment::DeviceWaits(int rank) const { return HeartOf(rank).device_waits; }

bool HostSegment::IsInCall(int rank) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t r = 0; r < groups_[g].ranks.size(); ++r) {
      if (groups_[g].ranks[r] != rank) continue;
      if (Area(static_cast<int>(g), static_cast<int>(r)).activity.load(std::memory_order_relaxed) != 0) return true;
    }
  }
  return false;
}

void HostSegment::Ring(int group, int rank) const {
  RingBell(Area(group, rank).bell);
  if (header().mirrored.load(std::memory_order_relaxed) != 0) RingBell(header().mirror);
}

Bell& HostSegment::RingForMirror() const {
  header().mirrored.store(1);
  return header().mirror;
}

RankArea& HostSegment::Area(int group, int rank) const {
  return reinterpret_cast<RankArea*>(base_ + regions_[group].areas)[rank];
}

Channel& HostSegment::ChannelOf(int group, int from, int to) const {
  const Region& region = regions_[group];
  return reinterpret_cast<Channel*>(base_ + region.channels)[from * region.size + to];
}

SlotHeader& HostSegment::SlotHeaderOf(int group, int from, int to, int slot) const {
  const Region& region = regions_[group];
  return reinterpret_cast<SlotHeader*>(base_ + region.headers)[(from * region.size + to) * slots_ + slot];
}

std::byte* HostSegment::SlotData(int group, int from, int to, int slot) const {
  const Region& region = regions_[group];
  const int64_t pair = static_cast<int64_t>(from) * (region.size - 1) + (to < from ? to : to - 1);
  return base_ + region.data + (pair * slots_ + slot) * slot_bytes_;
}

}  // namespace tessera::parallel
