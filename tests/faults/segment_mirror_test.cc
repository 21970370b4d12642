#include "parallel/remote/segment_mirror.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <thread>

#include "parallel/host/endpoint.h"

namespace tessera::parallel {
namespace {

using ::testing::HasSubstr;

constexpr std::chrono::seconds kDeadline{60};
constexpr std::chrono::milliseconds kPause{5};
constexpr int kHub = 0;

// Simulates one world on several hosts within this process. Each host has a separate segment and mirror, and a thread
// that carries its batches.
class Hosts {
 public:
  // Host 0 is the hub. Some hosts may have no rank in `host_of_rank`.
  explicit Hosts(std::vector<int> host_of_rank, int hosts, bool rendezvous = false)
      : host_of_rank_(std::move(host_of_rank)), rendezvous_(rendezvous) {
    HostGroup world = {.name = "world"};
    for (size_t rank = 0; rank < host_of_rank_.size(); ++rank) world.ranks.push_back(static_cast<int>(rank));
    for (int host = 0; host < hosts; ++host) {
      segments_.push_back(*HostSegment::CreateInHeap(
          {.ranks = static_cast<int>(world.ranks.size()), .groups = {world}, .slot_bytes = 4096, .slots = 2}));
      mirrors_.push_back(std::make_unique<SegmentMirror>(segments_.back(), host_of_rank_, host));
    }
    for (int host = 0; host < hosts; ++host) carriers_.emplace_back([this, host] { Carry(host); });
  }
  ~Hosts() {
    ending_ = true;
    for (std::thread& carrier : carriers_) carrier.join();
  }

  HostSegment& segment(int host) { return *segments_[static_cast<size_t>(host)]; }

  // Runs `body` with the endpoint of each rank, in threads.
  void OnRanks(const std::function<void(HostEndpoint&)>& body) {
    std::vector<std::thread> threads;
    for (size_t rank = 0; rank < host_of_rank_.size(); ++rank) {
      threads.emplace_back([&, rank] {
        HostEndpoint endpoint(segments_[static_cast<size_t>(host_of_rank_[rank])], 0, static_cast<int>(rank),
                              {.deadline = kDeadline, .rendezvous = rendezvous_});
        body(endpoint);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

 private:
  // Sends this host's batches through the hub, like the streams of nodes. Batches of one host stay in order.
  void Carry(int host) {
    SegmentMirror& mirror = *mirrors_[static_cast<size_t>(host)];
    while (!ending_) {
      const std::string batch = mirror.Collect();
      if (batch.empty()) {
        mirror.Wait(kPause);
        continue;
      }
      const std::lock_guard lock(mutex_);
      absl::StatusOr<std::map<int, std::string>> others = mirrors_[kHub]->Route(host, batch);
      ASSERT_TRUE(others.ok()) << others.status();
      for (const auto& [other, updates] : *others) {
        ASSERT_TRUE(mirrors_[static_cast<size_t>(other)]->Apply(updates).ok());
      }
    }
  }

  const std::vector<int> host_of_rank_;
  const bool rendezvous_;
  std::vector<std::shared_ptr<HostSegment>> segments_;
  std::vector<std::unique_ptr<SegmentMirror>> mirrors_;
  std::atomic<bool> ending_ = false;
  std::mutex mutex_;
  std::vector<std::thread> carriers_;
};

std::vector<char> Pattern(int from, int to, int round) {
  std::mt19937 random(from + 10 * to + 100 * round);
  std::vector<char> bytes(random() % 30000);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

void ExchangeOften(HostEndpoint& endpoint) {
  constexpr int kRounds = 20;
  const int ranks = endpoint.size();
  const HostCall call{.kind = Collective::kAllToAll, .dtype = 1};
  for (int round = 0; round < kRounds; ++round) {
    endpoint.BeginCollective(call);
    std::vector<std::vector<char>> sent, received;
    std::vector<Outgoing> out;
    std::vector<Incoming> in;
    for (int other = 0; other < ranks; ++other) {
      sent.push_back(Pattern(endpoint.rank(), other, round));
      received.emplace_back(Pattern(other, endpoint.rank(), round).size());
    }
    for (int other = 0; other < ranks; ++other) {
      if (other == endpoint.rank()) continue;
      const auto index = static_cast<size_t>(other);
      out.push_back({.to = other,
                     .data = reinterpret_cast<const std::byte*>(sent[index].data()),
                     .bytes = static_cast<int64_t>(sent[index].size()),
                     .call = call});
      in.push_back({.from = other,
                    .data = reinterpret_cast<std::byte*>(received[index].data()),
                    .bytes = static_cast<int64_t>(received[index].size()),
                    .call = call});
    }
    endpoint.Transfer(out, in);
    endpoint.EndCall();
    for (int other = 0; other < ranks; ++other) {
      if (other == endpoint.rank()) continue;
      ASSERT_EQ(received[static_cast<size_t>(other)], Pattern(other, endpoint.rank(), round)) << "round " << round;
    }
    endpoint.Barrier();
  }
}

TEST(SegmentMirrorTest, MessagesOfAnySizeReachTheRanksOfOtherHosts) {
  Hosts hosts({1, 1, 2, 0}, /*hosts=*/3);
  hosts.OnRanks(ExchangeOften);
}

TEST(SegmentMirrorTest, SoTheyDoWhereASendWaitsForItsReceiver) {
  Hosts hosts({1, 2}, /*hosts=*/3, /*rendezvous=*/true);
  hosts.OnRanks(ExchangeOften);
}

TEST(SegmentMirrorTest, PoisonAndBeatsOfOneHostReachAllOthers) {
  Hosts hosts({1, 2}, /*hosts=*/3);
  hosts.segment(1).Load(0).total = 9;
  hosts.segment(1).Load(0).read = 5;
  hosts.segment(1).Beats(0) = 41;
  hosts.segment(2).Poison(1, "it fell over");
  for (const int host : {kHub, 1}) {
    const auto end = std::chrono::steady_clock::now() + kDeadline;
    while (!hosts.segment(host).IsPoisoned() && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    ASSERT_TRUE(hosts.segment(host).IsPoisoned());
    EXPECT_EQ(hosts.segment(host).poison()->rank, 1);
    EXPECT_EQ(hosts.segment(host).poison()->reason, "it fell over");
  }
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (hosts.segment(kHub).Beats(0) != 41 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(hosts.segment(kHub).Beats(0), 41u);
  EXPECT_EQ(hosts.segment(kHub).Load(0).read, 5u);
  EXPECT_EQ(hosts.segment(kHub).Load(0).total, 9u);
}

TEST(SegmentMirrorTest, ARankThatOnlyReadsItsModelIsReportedToo) {
  Hosts hosts({1, 2}, /*hosts=*/3);
  hosts.segment(1).Load(0).total = 9;
  const auto end = std::chrono::steady_clock::now() + kDeadline;
  while (hosts.segment(kHub).Load(0).total != 9 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  EXPECT_EQ(hosts.segment(kHub).Load(0).total, 9u);
}

// Updates that a host must not send.
class RefusedUpdatesTest : public ::testing::Test {
 protected:
  std::string Refusal(const SegmentUpdate& update, int from = 1) {
    std::string batch;
    AppendUpdate(update, batch);
    return std::string(mirror_.Route(from, batch).status().message());
  }

  static SegmentUpdate Slot(uint64_t index, std::string_view bytes) {
    SegmentUpdate slot = {.kind = UpdateKind::kSlot, .from = 0, .to = 2, .index = index, .bytes = bytes};
    slot.header.bytes = slot.header.message_bytes = static_cast<int64_t>(bytes.size());
    return slot;
  }

  // Ranks 0 and 1 are on host 1, rank 2 is on the hub.
  const std::shared_ptr<HostSegment> segment_ = *HostSegment::CreateInHeap(
      {.ranks = 3, .groups = {{.name = "world", .ranks = {0, 1, 2}}}, .slot_bytes = 4096, .slots = 2});
  SegmentMirror mirror_{segment_, {1, 1, 0}, kHub};
};

TEST_F(RefusedUpdatesTest, ASlotOutOfOrderOrBeyondTheReader) {
  EXPECT_EQ(Refusal(Slot(0, "abc")), "");
  EXPECT_THAT(Refusal(Slot(0, "abc")), HasSubstr("out of order"));
  EXPECT_THAT(Refusal(Slot(2, "abc")), HasSubstr("out of order"));
  EXPECT_EQ(Refusal(Slot(1, "abc")), "");
  EXPECT_THAT(Refusal(Slot(2, "abc")), HasSubstr("more slots are in use than exist"));
}

TEST_F(RefusedUpdatesTest, ASlotOfALengthOtherThanItSays) {
  SegmentUpdate slot = Slot(0, "abc");
  slot.header.bytes = 2;
  EXPECT_THAT(Refusal(slot), HasSubstr("wrong length"));
  slot = Slot(0, "abc");
  slot.header.offset = 1;
  EXPECT_THAT(Refusal(slot), HasSubstr("wrong length"));
  EXPECT_THAT(Refusal(Slot(0, std::string(5000, 'x'))), HasSubstr("wrong length"));
}

TEST_F(RefusedUpdatesTest, WhatOnlyAnotherHostsRanksCanSay) {
  SegmentUpdate slot = Slot(0, "abc");
  EXPECT_THAT(Refusal(slot, /*from=*/2), HasSubstr("rank of another host"));
  slot.to = 1;
  EXPECT_THAT(Refusal(slot), HasSubstr("both ranks are on one host"));
  EXPECT_THAT(Refusal({.kind = UpdateKind::kBeats, .from = 2, .index = 5}), HasSubstr("another host's rank"));
  EXPECT_THAT(Refusal({.kind = UpdateKind::kArea, .from = 2}), HasSubstr("rank of another host"));
}

TEST_F(RefusedUpdatesTest, RanksGroupsAndSlotsThatAreNotThere) {
  EXPECT_THAT(Refusal({.kind = UpdateKind::kArea, .group = 1}), HasSubstr("names an unknown group"));
  EXPECT_THAT(Refusal({.kind = UpdateKind::kArea, .from = 3}), HasSubstr("names a rank that is not in the group"));
  EXPECT_THAT(Refusal({.kind = UpdateKind::kPoison, .from = 7}), HasSubstr("names an unknown rank"));
  EXPECT_THAT(Refusal({.kind = UpdateKind::kRead, .from = 2, .to = 0, .index = 1}), HasSubstr("that were not written"));
  EXPECT_THAT(Refusal({.kind = UpdateKind::kArea, .from = 0, .bytes = "more"}),
              HasSubstr("updates of its kind have none"));
}

TEST_F(RefusedUpdatesTest, BytesThatAreNoBatch) {
  std::string batch;
  AppendUpdate(Slot(0, "abc"), batch);
  for (size_t length = 1; length < batch.size(); ++length) {
    EXPECT_FALSE(ReadUpdates(std::string_view(batch).substr(0, length)).ok()) << length;
  }
  for (const char kind : {char{0}, char{6}}) {
    batch[4] = kind;
    EXPECT_FALSE(ReadUpdates(batch).ok());
  }
}

}  // namespace
}  // namespace tessera::parallel
