#include "runtime/training/data/data_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

namespace tessera::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Three buckets of 7, 4 and 1 samples, of which sample 3 is visited three times per epoch.
std::vector<OrderedSample> Samples() {
  std::vector<OrderedSample> samples;
  for (int64_t id = 0; id < 12; ++id) {
    samples.push_back({.id = id, .bucket = id < 7 ? 0 : id < 11 ? 1 : 2, .repeats = id == 3 ? 3 : 1});
  }
  return samples;
}

DataOrder Order(int64_t batch_size, uint64_t seed = 1) {
  absl::StatusOr<DataOrder> order = DataOrder::Create(Samples(), batch_size, seed);
  EXPECT_TRUE(order.ok()) << order.status();
  return *std::move(order);
}

int64_t BucketOf(int64_t id) { return Samples()[static_cast<size_t>(id)].bucket; }

TEST(DataOrderTest, ABatchIsFullAndOfOneBucket) {
  for (const int64_t batch_size : {1, 2, 3, 4, 16}) {
    DataOrder order = Order(batch_size);
    for (int64_t cursor = 0; cursor < 100; ++cursor) {
      const GlobalBatch batch = order.Batch(cursor);
      ASSERT_EQ(batch.visits.size(), static_cast<size_t>(batch_size));
      for (const SampleVisit& visit : batch.visits) EXPECT_EQ(BucketOf(visit.id), batch.bucket);
    }
  }
}

// A bucket's sequence has no gaps and no duplicates: in a whole number of epochs and batches, each sample has exactly
// its share of visits, and each (id, epoch) occurs once.
TEST(DataOrderTest, EverySampleComesAsOftenAsItsRepeatsSay) {
  for (const int64_t batch_size : {1, 2, 3, 4, 16}) {
    SCOPED_TRACE(batch_size);
    DataOrder order = Order(batch_size);
    const int64_t epochs = 2 * batch_size;  // then the sequences of all buckets end together with a batch
    std::set<SampleVisit> visits;
    std::map<int64_t, int64_t> times;
    const int64_t end = order.BatchesBefore(epochs);
    for (int64_t cursor = 0; cursor < end; ++cursor) {
      for (const SampleVisit& visit : order.Batch(cursor).visits) {
        EXPECT_TRUE(visits.insert(visit).second) << visit.id << " " << visit.epoch;
        ++times[visit.id];
      }
    }
    for (const OrderedSample& sample : Samples()) {
      EXPECT_EQ(times[sample.id], epochs * sample.repeats) << sample.id;
      for (int64_t epoch = 0; epoch < epochs * sample.repeats; ++epoch) {
        EXPECT_EQ(visits.count({sample.id, epoch}), 1u) << sample.id << " " << epoch;
      }
    }
  }
}

TEST(DataOrderTest, ABatchIsAFunctionOfTheCursorAlone) {
  DataOrder forwards = Order(4), backwards = Order(4);
  std::vector<GlobalBatch> batches;
  for (int64_t cursor = 0; cursor < 60; ++cursor) batches.push_back(forwards.Batch(cursor));
  for (int64_t cursor = 59; cursor >= 0; --cursor) {
    EXPECT_EQ(backwards.Batch(cursor), batches[static_cast<size_t>(cursor)]) << cursor;
  }
  EXPECT_EQ(Order(4).Batch(37), batches[37]);
}

TEST(DataOrderTest, SlicesOfAllRanksAreTheBatchOfOneRank) {
  DataOrder order = Order(8);
  for (int64_t cursor = 0; cursor < 20; ++cursor) {
    const GlobalBatch batch = order.Batch(cursor);
    for (const int ranks : {1, 2, 4, 8}) {
      std::vector<SampleVisit> together;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::span<const SampleVisit> slice = SliceOf(batch, rank, ranks);
        EXPECT_EQ(slice.size(), 8u / static_cast<size_t>(ranks));
        together.insert(together.end(), slice.begin(), slice.end());
      }
      EXPECT_EQ(together, batch.visits);
    }
  }
}

TEST(DataOrderTest, EpochsFollowTheCursor) {
  DataOrder order = Order(3);
  int64_t epoch = 0;
  for (int64_t cursor = 0; cursor < 200; ++cursor) {
    if (cursor == order.BatchesBefore(epoch + 1)) ++epoch;
    EXPECT_EQ(order.EpochOf(cursor), epoch);
    EXPECT_EQ(order.Batch(cursor).epoch, epoch);
  }
}

// A batch that begins in an epoch whose entries run out is filled with the first entries of the next.
TEST(DataOrderTest, ABatchThatRunsOutOfEntriesIsFilledFromTheNextEpoch) {
  const std::vector<OrderedSample> samples = {{.id = 0}, {.id = 1}, {.id = 2}};
  absl::StatusOr<DataOrder> order = DataOrder::Create(samples, 2, 5);
  ASSERT_TRUE(order.ok()) << order.status();
  std::vector<int64_t> epochs;
  for (int64_t cursor = 0; cursor < 3; ++cursor) {
    for (const SampleVisit& visit : order->Batch(cursor).visits) epochs.push_back(visit.epoch);
  }
  // The two batches of epoch 0 come in either order, followed by the one that begins in epoch 1.
  EXPECT_EQ(std::accumulate(epochs.begin(), epochs.end(), int64_t{0}), 3);
  EXPECT_EQ(order->BatchesBefore(1), 2);
  EXPECT_EQ(order->BatchesBefore(2), 3);
  // More than one epoch fits into a batch.
  absl::StatusOr<DataOrder> wide = DataOrder::Create(std::vector<OrderedSample>{{.id = 9}}, 4, 5);
  ASSERT_TRUE(wide.ok()) << wide.status();
  EXPECT_THAT(wide->Batch(1).visits,
              ElementsAre(SampleVisit{9, 4}, SampleVisit{9, 5}, SampleVisit{9, 6}, SampleVisit{9, 7}));
  EXPECT_EQ(wide->Batch(1).epoch, 4);
}

TEST(DataOrderTest, SeedsAndEpochsAreShuffledDifferently) {
  std::vector<OrderedSample> samples;
  for (int64_t id = 0; id < 50; ++id) samples.push_back({.id = id});
  const auto epoch = [&](uint64_t seed, int64_t cursor) {
    std::vector<int64_t> ids;
    for (const SampleVisit& visit : DataOrder::Create(samples, 50, seed)->Batch(cursor).visits) ids.push_back(visit.id);
    return ids;
  };
  EXPECT_NE(epoch(1, 0), epoch(2, 0));
  EXPECT_NE(epoch(1, 0), epoch(1, 1));
  EXPECT_NE(epoch(1, 0), epoch(1 + (uint64_t{1} << 32), 0));
  std::vector<int64_t> in_turn(50);
  std::iota(in_turn.begin(), in_turn.end(), int64_t{0});
  EXPECT_NE(epoch(1, 0), in_turn);
}

// The results of a seed must never change: a run that is resumed with a later program would see other images. Expected
// values were computed by a Philox4x32-10 in Python.
TEST(DataOrderTest, TheOrderOfASeedStaysWhatItIs) {
  std::vector<OrderedSample> samples;
  for (int64_t id = 0; id < 6; ++id) samples.push_back({.id = id});
  absl::StatusOr<DataOrder> order = DataOrder::Create(samples, 6, 42);
  ASSERT_TRUE(order.ok());
  std::vector<int64_t> ids;
  for (const SampleVisit& visit : order->Batch(0).visits) ids.push_back(visit.id);
  EXPECT_THAT(ids, ElementsAre(1, 4, 0, 3, 5, 2));
}

TEST(DataOrderTest, WhatCannotBeOrderedIsRefused) {
  EXPECT_THAT(std::string(DataOrder::Create({}, 1, 0).status().message()), HasSubstr("no samples"));
  EXPECT_THAT(std::string(DataOrder::Create(Samples(), 0, 0).status().message()), HasSubstr("batch has 0 samples"));
  const std::vector<OrderedSample> wrong = {{.id = 4, .bucket = -1}};
  EXPECT_THAT(std::string(DataOrder::Create(wrong, 1, 0).status().message()), HasSubstr("sample 4 has bucket -1"));
}

}  // namespace
}  // namespace tessera::runtime
