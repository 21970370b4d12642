#include "parallel/host/endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <thread>

namespace tessera::parallel {
namespace {

constexpr std::chrono::seconds kDeadline{60};

std::shared_ptr<HostSegment> Segment(int ranks) {
  HostGroup world{.name = "world", .ranks = std::vector<int>(ranks)};
  std::iota(world.ranks.begin(), world.ranks.end(), 0);
  return *HostSegment::CreateInHeap({.ranks = ranks, .groups = {world}, .slot_bytes = 4096, .slots = 2});
}

// Runs `body` with the endpoint of each rank, in threads.
void OnThreads(int ranks, const std::function<void(HostEndpoint&)>& body) {
  const std::shared_ptr<HostSegment> segment = Segment(ranks);
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      HostEndpoint endpoint(segment, 0, r, {.deadline = kDeadline});
      body(endpoint);
    });
  for (std::thread& thread : threads) thread.join();
}

Outgoing To(int rank, const std::vector<char>& bytes, const HostCall& call) {
  return {.to = rank,
          .data = reinterpret_cast<const std::byte*>(bytes.data()),
          .bytes = static_cast<int64_t>(bytes.size()),
          .call = call};
}

Incoming From(int rank, std::vector<char>& bytes, const HostCall& call) {
  return {.from = rank,
          .data = reinterpret_cast<std::byte*>(bytes.data()),
          .bytes = static_cast<int64_t>(bytes.size()),
          .call = call};
}

std::vector<char> Pattern(int from, int to, int round) {
  std::mt19937 random(from + 10 * to + 100 * round);
  std::vector<char> bytes(random() % 30000);
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

TEST(HostEndpointTest, MovesMessagesOfAnySizeBetweenAllRanks) {
  constexpr int kRanks = 3;
  OnThreads(kRanks, [](HostEndpoint& endpoint) {
    const HostCall call{.kind = Collective::kAllToAll, .dtype = 1};
    for (int round = 0; round < 30; ++round) {
      endpoint.BeginCollective(call);
      std::vector<std::vector<char>> sent(kRanks), received(kRanks);
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      for (int r = 0; r < kRanks; ++r) {
        if (r == endpoint.rank()) continue;
        sent[r] = Pattern(endpoint.rank(), r, round);
        received[r].resize(Pattern(r, endpoint.rank(), round).size());
        out.push_back(To(r, sent[r], call));
        in.push_back(From(r, received[r], call));
      }
      endpoint.Transfer(out, in);
      received[endpoint.rank()] = Pattern(endpoint.rank(), endpoint.rank(), round);
      for (int r = 0; r < kRanks; ++r) EXPECT_EQ(received[r], Pattern(r, endpoint.rank(), round));
      endpoint.BeginCollective({});
      endpoint.Barrier();
      endpoint.EndCall();
    }
  });
}

TEST(HostEndpointTest, WakesSleepersWhicheverWayTheyFallAsleep) {
  // Without spinning, every wait sleeps at once.
  const std::shared_ptr<HostSegment> segment = Segment(2);
  int64_t turns = 0;
  const auto play = [&](int rank) {
    HostEndpoint endpoint(segment, 0, rank, {.deadline = kDeadline, .spin = std::chrono::nanoseconds(0)});
    for (int64_t turn = 0; turn < 3000; ++turn) {
      if (turn % 2 == rank) ++turns;
      endpoint.BeginCollective({});
      endpoint.Barrier();
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  EXPECT_EQ(turns, 3000);
}

TEST(HostEndpointTest, BelievesNothingThatItsPeerMayHaveSpoilt) {
  const auto spoil = [](const std::function<void(HostSegment&)>& change, const std::string& why) {
    const std::shared_ptr<HostSegment> segment = Segment(2);
    HostEndpoint sender(segment, 0, 1, {}), receiver(segment, 0, 0, {});
    std::vector<char> bytes(5000), into(5000);
    const HostCall call{.kind = Collective::kSend, .dtype = 1};
    std::vector<Outgoing> out{To(0, bytes, call)}, no_out;
    std::vector<Incoming> in{From(1, into, call)}, no_in;
    sender.Advance(out, no_in);
    change(*segment);
    try {
      receiver.Transfer(no_out, in);
      ADD_FAILURE() << "was believed";
    } catch (const HostFailure& failure) {
      EXPECT_EQ(failure.reason, why);
    }
    EXPECT_TRUE(segment->IsPoisoned());
  };
  const auto header = [](HostSegment& segment) -> host_layout::SlotHeader& { return segment.SlotHeaderOf(0, 1, 0, 0); };
  spoil([&](HostSegment& segment) { header(segment).bytes = 5000; }, "a slot of rank 1 is corrupt");
  spoil([&](HostSegment& segment) { header(segment).bytes = -1; }, "a slot of rank 1 is corrupt");
  spoil([&](HostSegment& segment) { header(segment).bytes = 0; }, "a slot of rank 1 is corrupt");
  spoil([&](HostSegment& segment) { header(segment).offset = 4096; }, "a slot of rank 1 is corrupt");
  spoil([](HostSegment& segment) { segment.ChannelOf(0, 1, 0).written = 77; }, "the slots of rank 1 are corrupt");
}

// Several messages of one call to one rank arrive in order, regardless of their sizes.
TEST(HostEndpointTest, KeepsTheOrderOfMessagesBetweenTwoRanks) {
  OnThreads(2, [](HostEndpoint& endpoint) {
    const HostCall call{.kind = Collective::kExchange, .dtype = 1};
    const int other = 1 - endpoint.rank();
    for (int round = 0; round < 30; ++round) {
      endpoint.BeginPointToPoint(Collective::kExchange);
      std::vector<std::vector<char>> sent, received;
      for (int i = 0; i < 4; ++i) {
        sent.push_back(i == 2 ? std::vector<char>() : Pattern(endpoint.rank(), i, round));
        received.emplace_back((i == 2 ? std::vector<char>() : Pattern(other, i, round)).size());
      }
      std::vector<Outgoing> out;
      std::vector<Incoming> in;
      for (int i = 0; i < 4; ++i) {
        out.push_back(To(other, sent[i], call));
        in.push_back(From(other, received[i], call));
      }
      endpoint.Transfer(out, in);
      endpoint.EndCall();
      for (int i = 0; i < 4; ++i) EXPECT_EQ(received[i], i == 2 ? std::vector<char>() : Pattern(other, i, round));
    }
  });
}

// With rendezvous no message is sent before the receiver waits for it, not even an empty one.
TEST(HostEndpointTest, RendezvousWaitsForTheReceiver) {
  const std::shared_ptr<HostSegment> segment = Segment(2);
  HostEndpoint sender(segment, 0, 1, {.rendezvous = true}), receiver(segment, 0, 0, {.rendezvous = true});
  std::vector<char> bytes{'x'}, empty, into(1), nothing;
  const HostCall call{.kind = Collective::kSend, .dtype = 1};
  std::vector<Outgoing> out{To(0, empty, call), To(0, bytes, call)}, no_out;
  std::vector<Incoming> in{From(1, nothing, call), From(1, into, call)}, no_in;
  sender.Advance(out, no_in);
  EXPECT_FALSE(out[0].finished);
  receiver.Advance(no_out, in);
  EXPECT_FALSE(in[0].finished);
  sender.Advance(out, no_in);
  EXPECT_TRUE(out[1].finished);
  receiver.Transfer(no_out, in);
  EXPECT_EQ(into, bytes);
  std::vector<Outgoing> more{To(0, bytes, call)};
  sender.Advance(more, no_in);
  EXPECT_FALSE(more[0].finished);
}

}  // namespace
}  // namespace tessera::parallel
