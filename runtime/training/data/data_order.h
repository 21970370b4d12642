// DataOrder is the order in which a run visits its samples: a seeded global order in which every batch is from one
// bucket.
//
// An epoch visits every entry; an entry is one of a sample's repeats. Within a bucket the entries of an epoch are
// shuffled, and the epochs follow each other without a gap. Batches are cut from this endless sequence, so that the
// last batch of an epoch, if it lacks entries, is filled with the first ones of the next epoch; no entry is skipped or
// repeated. A batch belongs to the epoch of its first entry. Within an epoch the batches of all buckets are shuffled
// together.
//
// The order depends only on the seed, the entries and the size of the global batch, not on the topology or on what was
// read before. A run's position is one integer, the cursor. LibTorch-free; for one thread.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::runtime {

// A sample as an element of its bucket.
struct OrderedSample {
  int64_t id = 0;
  int64_t bucket = 0;   // 0, 1, …; less than the number of buckets
  int64_t repeats = 1;  // visits per epoch, at least 1
};

// One visit to a sample. (id, epoch) is the key of its random numbers; no two visits of a run have the same key.
struct SampleVisit {
  int64_t id = 0;
  int64_t epoch = 0;  // number of earlier visits to this sample; each repeat counts as an epoch

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
  // Returns InvalidArgument if there are no samples or a number is out of range. `batch_size` is over all data ranks.
  static absl::StatusOr<DataOrder> Create(std::span<const OrderedSample> samples, int64_t batch_size, uint64_t seed);

  // Returns the batch at a position of the order, 0 or greater. This takes the time of shuffling an epoch if the
  // previous batch was from a different epoch; otherwise very little.
  GlobalBatch Batch(int64_t cursor);

  // Returns the number of batches of all earlier epochs, which is the cursor at which this epoch begins.
  int64_t BatchesBefore(int64_t epoch) const;
  int64_t EpochOf(int64_t cursor) const;

 private:
  // As small as kMaxEntries allows, since there is one per entry.
  struct Entry {
    uint32_t id = 0;
    uint32_t copy = 0;  // index among the sample's repeats
    uint32_t repeats = 1;
  };
  using Shuffle = std::pair<int64_t, std::vector<uint32_t>>;  // an epoch, and its entries in shuffled order

  DataOrder(std::vector<std::vector<Entry>> buckets, int64_t batch_size, uint64_t seed);

  const std::vector<uint32_t>& ShuffleOf(size_t bucket, int64_t epoch);
  // Returns the batches of a bucket's sequence that begin in that epoch: the first, and the first of the next epoch.
  std::pair<int64_t, int64_t> BatchesOf(const std::vector<Entry>& entries, int64_t epoch) const;
  void PlanEpoch(int64_t epoch);

  std::vector<std::vector<Entry>> buckets_;
  int64_t entries_ = 0;  // of all buckets
  int64_t batch_size_;
  uint64_t seed_;
  int64_t planned_epoch_ = -1;
  std::vector<uint32_t> plan_;  // of that epoch: positions in the concatenation of all buckets' batches, in bucket
                                // order
  std::vector<std::vector<Shuffle>> shuffles_;  // the two most recently used of each bucket
};

// Returns the part of a global batch that data rank `rank` of `ranks` computes, 0 … ranks - 1: parts of equal size, in
// order. The number of ranks must divide the batch.
std::span<const SampleVisit> SliceOf(const GlobalBatch& batch, int rank, int ranks);

}  // namespace tessera::runtime
