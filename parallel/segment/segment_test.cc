#include "parallel/segment/segment.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <sstream>

#include "base/files/file_descriptor.h"

namespace tessera::parallel {
namespace {

using ::testing::HasSubstr;

HostSegmentOptions Options() {
  return {.ranks = 3, .groups = {{"world", {0, 1, 2}}, {"pair", {2, 0}}}, .slot_bytes = 4096, .slots = 2};
}

std::array<int, 2> SocketPair() {
  std::array<int, 2> ends;
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  return ends;
}

TEST(HostSegmentTest, SaysWhatIsWrongWithAnImpossiblePlan) {
  const auto refuse = [](const HostSegmentOptions& options, const std::string& why) {
    for (const auto& created : {HostSegment::CreateInHeap(options), HostSegment::CreateShared(options)}) {
      EXPECT_EQ(created.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(created.status().message()), HasSubstr(why));
    }
  };
  HostSegmentOptions options = Options();
  options.ranks = 0;
  refuse(options, "0 ranks; a host segment has 1 to 64");
  options = Options();
  options.slot_bytes = 5000;
  refuse(options, "slots of 5000 bytes; valid values are multiples of 4096");
  options = Options();
  options.slots = 1;
  refuse(options, "1 slots; valid values are 2 to 256");
  options = Options();
  options.groups[1].ranks = {0, 3};
  refuse(options, "group pair names rank 3 of a world of 3");
  options = Options();
  options.groups.push_back({"pair", {2, 1}});
  refuse(options, "rank 2 is twice in groups named pair");
  options = Options();
  while (options.groups.size() <= kMaxHostGroups) {
    options.groups.push_back({"more" + std::to_string(options.groups.size()), {0, 1, 2}});
  }
  refuse(options, "groups; valid values are at most");
  options = Options();
  options.groups[0].name = std::string(32, 'n');
  refuse(options, "must have 1 to 31 bytes");
}

TEST(HostSegmentTest, OfARankThatIsAloneHasNoGroups) {
  HostSegmentOptions options = Options();
  options.ranks = 1;
  options.groups.clear();
  const auto created = HostSegment::CreateInHeap(options);
  ASSERT_TRUE(created.ok()) << created.status();
  EXPECT_FALSE((*created)->IsInCall(0));
  EXPECT_EQ((*created)->Beats(0), 0u);
}

TEST(HostSegmentTest, SaysThatSharedMemoryIsTooSmall) {
  HostSegmentOptions options = Options();
  options.slot_bytes = 64 << 20;
  options.slots = 256;
  for (int g = 0; g < 6; ++g) options.groups.push_back({"more" + std::to_string(g), {0, 1, 2}});
  // Runs in a child process whose files are limited to 1 MB, so that it takes no memory of this machine.
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {1 << 20, 1 << 20};
    setrlimit(RLIMIT_FSIZE, &limit);
    const auto created = HostSegment::CreateShared(options);
    const bool clear = !created.ok() &&
                       created.status().message().find("shared memory of ") != absl::string_view::npos &&
                       created.status().message().find(" bytes for 3 ranks") != absl::string_view::npos;
    _exit(clear ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(HostSegmentTest, FindsTheGroupOfARankByName) {
  const auto segment = HostSegment::CreateInHeap(Options());
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_EQ((*segment)->FindGroup("world", 1), 0);
  EXPECT_EQ((*segment)->FindGroup("pair", 0), 1);
  EXPECT_EQ((*segment)->FindGroup("pair", 1), -1);
  EXPECT_EQ((*segment)->FindGroup("none", 0), -1);
}

TEST(HostSegmentTest, GivesEveryChannelAndSlotMemoryOfItsOwn) {
  const auto created = HostSegment::CreateInHeap(Options());
  ASSERT_TRUE(created.ok()) << created.status();
  const HostSegment& segment = **created;
  std::vector<std::pair<uintptr_t, uintptr_t>> spans;
  const auto add = [&spans](const void* begin, size_t bytes) {
    spans.emplace_back(reinterpret_cast<uintptr_t>(begin), reinterpret_cast<uintptr_t>(begin) + bytes);
  };
  for (const int group : {0, 1})
    for (int from = 0; from < 3 - group; ++from) {
      add(&segment.Area(group, from), sizeof(host_layout::RankArea));
      for (int to = 0; to < 3 - group; ++to) {
        if (from == to) continue;
        add(&segment.ChannelOf(group, from, to), sizeof(host_layout::Channel));
        for (const int slot : {0, 1}) {
          add(&segment.SlotHeaderOf(group, from, to, slot), sizeof(host_layout::SlotHeader));
          add(segment.SlotData(group, from, to, slot), 4096);
        }
      }
    }
  std::sort(spans.begin(), spans.end());
  for (size_t i = 1; i < spans.size(); ++i) EXPECT_LE(spans[i - 1].second, spans[i].first);
  EXPECT_LE(spans.back().second - spans.front().first, static_cast<size_t>(segment.total_bytes()));
}

TEST(SharedSegmentTest, IsTheSameMemoryForEveryProcessThatMapsIt) {
  const auto segment = HostSegment::CreateShared(Options());
  ASSERT_TRUE(segment.ok()) << segment.status();
  const auto mapped = HostSegment::Map((*segment)->descriptor());
  ASSERT_TRUE(mapped.ok()) << mapped.status();
  EXPECT_NE((*mapped)->descriptor(), (*segment)->descriptor());
  EXPECT_EQ((*mapped)->ranks(), 3);
  ASSERT_EQ((*mapped)->groups().size(), 2u);
  EXPECT_EQ((*mapped)->groups()[1].name, "pair");
  EXPECT_EQ((*mapped)->groups()[1].ranks, (std::vector<int>{2, 0}));
  *(*segment)->SlotData(0, 2, 1, 1) = std::byte{42};
  EXPECT_EQ(*(*mapped)->SlotData(0, 2, 1, 1), std::byte{42});
  (*segment)->Poison(2, "a reason");
  ASSERT_TRUE((*mapped)->poison());
  EXPECT_EQ((*mapped)->poison()->rank, 2);
  EXPECT_EQ((*mapped)->poison()->reason, "a reason");
}

TEST(SharedSegmentTest, CannotBeShrunkUnderItsReaders) {
  const auto segment = HostSegment::CreateShared(Options());
  ASSERT_TRUE(segment.ok()) << segment.status();
  EXPECT_NE(ftruncate((*segment)->descriptor(), 4096), 0);
  EXPECT_NE(ftruncate((*segment)->descriptor(), int64_t{1} << 30), 0);
}

TEST(SharedSegmentTest, IsGoneWithItsLastHolder) {
  const auto mentions = [] {
    std::ifstream maps("/proc/self/maps");
    std::stringstream text;
    text << maps.rdbuf();
    return text.str().find("memfd:tessera") != std::string::npos;
  };
  {
    const auto segment = HostSegment::CreateShared(Options());
    ASSERT_TRUE(segment.ok()) << segment.status();
    EXPECT_TRUE(mentions());
  }
  EXPECT_FALSE(mentions());
}

// Creates a memfd with these bytes, sealed like a segment.
int SealedFile(const std::vector<char>& bytes) {
  const int file = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(write(file, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_EQ(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  return file;
}

std::vector<char> GoodBytes() {
  const auto segment = HostSegment::CreateShared(Options());
  std::vector<char> bytes((*segment)->total_bytes());
  EXPECT_EQ(pread((*segment)->descriptor(), bytes.data(), bytes.size(), 0), static_cast<ssize_t>(bytes.size()));
  return bytes;
}

TEST(MapTest, TakesACopyOfASegment) {
  const base::FileDescriptor file(SealedFile(GoodBytes()));
  EXPECT_TRUE(HostSegment::Map(file.get()).ok());
}

TEST(MapTest, RefusesWhatCouldShrink) {
  const base::FileDescriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const std::vector<char> bytes = GoodBytes();
  ASSERT_EQ(write(file.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  EXPECT_THAT(std::string(HostSegment::Map(file.get()).status().message()), HasSubstr("its size is not sealed"));
}

TEST(MapTest, RefusesWhatIsNoMemoryAtAll) {
  const std::array<int, 2> ends = SocketPair();
  const base::FileDescriptor here(ends[0]), there(ends[1]);
  EXPECT_FALSE(HostSegment::Map(here.get()).ok());
  EXPECT_FALSE(HostSegment::Map(-1).ok());
}

TEST(MapTest, RefusesEveryHeaderThatDoesNotFitTheMemory) {
  const auto refuse = [](const std::function<void(std::vector<char>&)>& spoil, const std::string& why) {
    std::vector<char> bytes = GoodBytes();
    spoil(bytes);
    const base::FileDescriptor file(SealedFile(bytes));
    EXPECT_THAT(std::string(HostSegment::Map(file.get()).status().message()), HasSubstr(why));
  };
  using host_layout::GroupEntry;
  using host_layout::Header;
  const auto set32 = [](size_t offset, uint32_t value) {
    return [=](std::vector<char>& bytes) { std::memcpy(bytes.data() + offset, &value, sizeof(value)); };
  };
  const auto set64 = [](size_t offset, uint64_t value) {
    return [=](std::vector<char>& bytes) { std::memcpy(bytes.data() + offset, &value, sizeof(value)); };
  };
  refuse([](std::vector<char>& bytes) { bytes.resize(100); }, "it is too small");
  refuse([](std::vector<char>& bytes) { bytes.resize(bytes.size() - 1); }, "bytes instead of");
  refuse(set64(offsetof(Header, magic), 7), "its header has another magic number");
  refuse(set32(offsetof(Header, version), 1), "its version is 1, this program's is 5");
  refuse(set32(offsetof(Header, ranks), 0xffffffff), "numbers out of range");
  refuse(set32(offsetof(Header, ranks), 2), "names rank 2 of a world of 2");
  refuse(set32(offsetof(Header, groups), 0x7fffffff), "numbers out of range");
  refuse(set32(offsetof(Header, groups), 400), "");
  refuse(set32(offsetof(Header, slots), 0), "0 slots");
  refuse(set32(offsetof(Header, slots), 3), "bytes instead of");
  refuse(set64(offsetof(Header, slot_bytes), uint64_t{1} << 63), "numbers out of range");
  refuse(set64(offsetof(Header, slot_bytes), 8192), "bytes instead of");
  refuse(set32(sizeof(Header) + offsetof(GroupEntry, size), 65), "a group's entry is out of range");
  refuse(set32(sizeof(Header) + offsetof(GroupEntry, ranks), 0x80000000), "names rank 64 of a world of 3");
  refuse([](std::vector<char>& bytes) { std::memset(bytes.data() + sizeof(Header), 'n', 32); },
         "a group's entry is out of range");
}

}  // namespace
}  // namespace tessera::parallel
