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

StridedBytes Whole(std::vector<char>& bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size()), stride = 1;
  return StridedBytes(bytes.data(), {&size, 1}, {&stride, 1}, 1);
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
        out.push_back({.to = r, .bytes = Whole(sent[r]), .call = call});
        in.push_back({.from = r, .bytes = Whole(received[r]), .call = call});
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
  // Without any spinning, every wait goes to sleep at once.
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
    std::vector<Outgoing> out{{.to = 0, .bytes = Whole(bytes), .call = call}}, no_out;
    std::vector<Incoming> in{{.from = 1, .bytes = Whole(into), .call = call}}, no_in;
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
  spoil([&](HostSegment& segment) { header(segment).bytes = 5000; }, "a slot of rank 1 is in disorder");
  spoil([&](HostSegment& segment) { header(segment).bytes = -1; }, "a slot of rank 1 is in disorder");
  spoil([&](HostSegment& segment) { header(segment).bytes = 0; }, "a slot of rank 1 is in disorder");
  spoil([&](HostSegment& segment) { header(segment).offset = 4096; }, "a slot of rank 1 is in disorder");
  spoil([](HostSegment& segment) { segment.ChannelOf(0, 1, 0).written = 77; }, "the slots of rank 1 are in disorder");
}

TEST(StridedBytesTest, WalksEveryElementInRowMajorOrder) {
  // Element i of the memory is i; views of it by sizes and strides.
  std::vector<int32_t> memory(200);
  std::iota(memory.begin(), memory.end(), 0);
  struct View {
    std::vector<int64_t> sizes, strides;
    int64_t run;  // elements side by side
  };
  const std::vector<View> views = {{{}, {}, 1},
                                   {{7}, {1}, 7},
                                   {{7}, {3}, 1},
                                   {{4, 5}, {5, 1}, 20},
                                   {{4, 5}, {1, 4}, 1},
                                   {{3, 2, 4}, {40, 8, 1}, 4},
                                   {{3, 1, 4}, {40, 99, 1}, 4},
                                   {{2, 3, 2, 2}, {100, 4, 2, 1}, 12},
                                   {{2, 0, 3}, {3, 3, 1}, 0}};
  for (const View& view : views) {
    std::vector<int32_t> expected;
    std::vector<int64_t> index(view.sizes.size(), 0);
    int64_t count = 1;
    for (const int64_t size : view.sizes) count *= size;
    for (int64_t i = 0; i < count; ++i) {
      expected.push_back(static_cast<int32_t>(std::inner_product(index.begin(), index.end(), view.strides.begin(), 0)));
      for (size_t d = index.size(); d-- > 0;) {
        if (++index[d] < view.sizes[d]) break;
        index[d] = 0;
      }
    }
    for (const int64_t piece : {4, 12, 1000}) {
      StridedBytes read(memory.data(), view.sizes, view.strides, 4);
      EXPECT_EQ(read.run(), view.run * 4);
      ASSERT_EQ(read.bytes(), count * 4);
      std::vector<int32_t> got(count), copy(200, -1);
      StridedBytes write(copy.data(), view.sizes, view.strides, 4);
      auto* bytes = reinterpret_cast<std::byte*>(got.data());
      for (int64_t done = 0; done < count * 4; done += piece) {
        read.Read(bytes + done, std::min(piece, count * 4 - done));
        write.Write(bytes + done, std::min(piece, count * 4 - done));
      }
      EXPECT_EQ(got, expected);
      for (const int32_t i : expected) EXPECT_EQ(copy[i], i);
    }
  }
}

}  // namespace
}  // namespace tessera::parallel
