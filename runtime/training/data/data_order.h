// In which order a run comes to its samples: a seeded global order, in which every batch is of one bucket.
//
// An epoch is a visit to every entry, an entry being one of a sample's repeats. Within a bucket the entries of an epoch
// are shuffled, and the epochs follow each other without a gap; batches are cut from this endless row, so that the last
// batch of an epoch, where entries are missing, is filled with the first of the next epoch, none is left out and none
// comes twice as often. A batch belongs to the epoch of its first entry. Within an epoch the batches of all buckets are
// shuffled among each other.
//
// Nothing but the seed, the entries and the size of the global batch goes into the order: not the topology, nor what
// was read before. One integer, the cursor, says where a run stands. Free of LibTorch; for one thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::runtime {

// A sample as its bucket holds it.
struct OrderedSample {
  int64_t id = 0;
  int64_t bucket = 0;   // 0, 1, …: each below the number of buckets
  int64_t repeats = 1;  // visits in an epoch, at least 1
};

// One coming to a sample. (id, epoch) is the key of its random numbers: no two visits of a run have the same.
struct SampleVisit {
  int64_t id = 0;
  int64_t epoch = 0;  // visits to this sample in all earlier places of its row: repeats count as epochs of their own

  auto operator<=>(const SampleVisit&) const = default;
};

struct GlobalBatch {
  int64_t epoch = 0;  // of the run
  int64_t bucket = 0;
  std::vector<SampleVisit> visits;

  bool operator==(const GlobalBatch&) const = default;
};

class DataOrder {
 public:
  // InvalidArgument without samples, and where a number is out of its range. `batch_size` is over all data ranks.
  static absl::StatusOr<DataOrder> Create(std::span<const OrderedSample> samples, int64_t batch_size, uint64_t seed);

  // The batch at that place of the order, 0 or greater. Takes the time of shuffling an epoch where the batch before was
  // of another; otherwise next to none.
  GlobalBatch Batch(int64_t cursor);

  // Batches of all epochs before this one: the cursor at which it begins.
  int64_t BatchesBefore(int64_t epoch) const;
  int64_t EpochOf(int64_t cursor) const;

 private:
  // As small as kMaxEntries allows, since there is one for each of them.
  struct Entry {
    uint32_t id = 0;
    uint32_t copy = 0;  // which of the sample's repeats
    uint32_t repeats = 1;
  };
  using Shuffle = std::pair<int64_t, std::vector<uint32_t>>;  // an epoch, and its entries in their order

  DataOrder(std::vector<std::vector<Entry>> buckets, int64_t batch_size, uint64_t seed);

  const std::vector<uint32_t>& ShuffleOf(size_t bucket, int64_t epoch);
  // Of a bucket's row, the batches that begin in that epoch: the first, and the first of the next epoch.
  std::pair<int64_t, int64_t> BatchesOf(const std::vector<Entry>& entries, int64_t epoch) const;
  void PlanEpoch(int64_t epoch);

  std::vector<std::vector<Entry>> buckets_;
  int64_t entries_ = 0;  // of all buckets
  int64_t batch_size_;
  uint64_t seed_;
  int64_t planned_epoch_ = -1;
  std::vector<uint32_t> plan_;  // of that epoch: places in the row of all buckets' batches, the first bucket's first
  std::vector<std::vector<Shuffle>> shuffles_;  // of each bucket, the two that were last used
};

// What of a global batch one of `ranks` data ranks computes, 0 … ranks - 1: parts of one size, in order. The number of
// ranks divides the batch.
std::span<const SampleVisit> SliceOf(const GlobalBatch& batch, int rank, int ranks);

}  // namespace tessera::runtime
