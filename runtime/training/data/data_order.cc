#include "runtime/training/data/data_order.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/denoising/noise.h"

namespace tessera::runtime {
namespace {

// Purposes in the same word of Philox's counter as NoisePurpose, far from its values. They define the results of a seed
// and must never change.
constexpr uint32_t kShuffleEntries = 0x6F726465, kShuffleBatches = 0x6F726466;
constexpr int64_t kMaxEntries = int64_t{1} << 31;
constexpr int64_t kMaxBuckets = 1 << 16;
constexpr int64_t kMaxBatch = 1 << 20;

int64_t CeilOfRatio(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Returns the numbers 0 … count - 1 in the order of random keys, so that each permutation depends only on the
// arguments.
std::vector<uint32_t> Shuffled(size_t count, uint64_t seed, uint32_t purpose, int64_t epoch, size_t bucket) {
  std::vector<std::pair<uint64_t, uint32_t>> keyed(count);
  for (size_t i = 0; i < count; ++i) {
    const auto place = static_cast<uint32_t>(epoch >> 32) ^ static_cast<uint32_t>(bucket << 16);
    const std::array<uint32_t, 4> bits =
        Philox4x32({static_cast<uint32_t>(i), static_cast<uint32_t>(epoch), place, purpose},
                   {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
    keyed[i] = {uint64_t{bits[0]} << 32 | bits[1], static_cast<uint32_t>(i)};
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<uint32_t> order(count);
  std::transform(keyed.begin(), keyed.end(), order.begin(), [](const auto& pair) { return pair.second; });
  return order;
}

}  // namespace

absl::StatusOr<DataOrder> DataOrder::Create(std::span<const OrderedSample> samples, int64_t batch_size, uint64_t seed) {
  if (samples.empty()) return absl::InvalidArgumentError("there are no samples");
  if (batch_size < 1 || batch_size > kMaxBatch) {
    return absl::InvalidArgumentError(
        absl::StrCat("the batch has ", batch_size, " samples; valid values are 1 to ", kMaxBatch));
  }
  std::vector<size_t> sizes;  // by bucket
  int64_t entries = 0;
  for (const OrderedSample& sample : samples) {
    if (sample.id < 0 || sample.id >= kMaxEntries || sample.bucket < 0 || sample.bucket >= kMaxBuckets ||
        sample.repeats < 1 || sample.repeats > kMaxEntries || (entries += sample.repeats) > kMaxEntries) {
      return absl::InvalidArgumentError(absl::StrCat("sample ", sample.id, " has bucket ", sample.bucket, " and ",
                                                     sample.repeats, " repeats; valid values are buckets below ",
                                                     kMaxBuckets, ", and samples below ", kMaxEntries,
                                                     " with as many entries in all"));
    }
    if (sizes.size() <= static_cast<size_t>(sample.bucket)) sizes.resize(static_cast<size_t>(sample.bucket) + 1);
    sizes[static_cast<size_t>(sample.bucket)] += static_cast<size_t>(sample.repeats);
  }
  std::vector<std::vector<Entry>> buckets(sizes.size());
  for (size_t bucket = 0; bucket < sizes.size(); ++bucket) buckets[bucket].reserve(sizes[bucket]);
  for (const OrderedSample& sample : samples) {
    for (int64_t copy = 0; copy < sample.repeats; ++copy) {
      buckets[static_cast<size_t>(sample.bucket)].push_back({.id = static_cast<uint32_t>(sample.id),
                                                             .copy = static_cast<uint32_t>(copy),
                                                             .repeats = static_cast<uint32_t>(sample.repeats)});
    }
  }
  return DataOrder(std::move(buckets), batch_size, seed);
}

DataOrder::DataOrder(std::vector<std::vector<Entry>> buckets, int64_t batch_size, uint64_t seed)
    : buckets_(std::move(buckets)), batch_size_(batch_size), seed_(seed), shuffles_(buckets_.size()) {
  for (const std::vector<Entry>& entries : buckets_) entries_ += static_cast<int64_t>(entries.size());
}

int64_t DataOrder::BatchesBefore(int64_t epoch) const {
  return std::accumulate(buckets_.begin(), buckets_.end(), int64_t{0}, [&](int64_t sum, const auto& entries) {
    return sum + CeilOfRatio(epoch * static_cast<int64_t>(entries.size()), batch_size_);
  });
}

int64_t DataOrder::EpochOf(int64_t cursor) const {
  // Searches for the last epoch that begins at or before the cursor. It is below `high`, because the batches up to the
  // cursor have only `visits` visits and every epoch has `entries_`.
  const int64_t visits = (cursor + 1) * batch_size_;
  int64_t low = 0, high = visits / entries_ + 2;
  while (high - low > 1) {
    const int64_t middle = low + (high - low) / 2;
    (BatchesBefore(middle) <= cursor ? low : high) = middle;
  }
  return low;
}

const std::vector<uint32_t>& DataOrder::ShuffleOf(size_t bucket, int64_t epoch) {
  std::vector<Shuffle>& kept = shuffles_[bucket];
  const auto found =
      std::find_if(kept.begin(), kept.end(), [&](const Shuffle& shuffle) { return shuffle.first == epoch; });
  if (found != kept.end()) return found->second;
  if (kept.size() == 2) kept.erase(kept.begin());
  kept.emplace_back(epoch, Shuffled(buckets_[bucket].size(), seed_, kShuffleEntries, epoch, bucket));
  return kept.back().second;
}

std::pair<int64_t, int64_t> DataOrder::BatchesOf(const std::vector<Entry>& entries, int64_t epoch) const {
  const auto count = static_cast<int64_t>(entries.size());
  return {CeilOfRatio(epoch * count, batch_size_), CeilOfRatio((epoch + 1) * count, batch_size_)};
}

void DataOrder::PlanEpoch(int64_t epoch) {
  if (planned_epoch_ == epoch) return;
  size_t batches = 0;
  for (const std::vector<Entry>& entries : buckets_) {
    const auto [begin, end] = BatchesOf(entries, epoch);
    batches += static_cast<size_t>(end - begin);
  }
  plan_ = std::vector<uint32_t>();
  plan_ = Shuffled(batches, seed_, kShuffleBatches, epoch, 0);
  planned_epoch_ = epoch;
}

GlobalBatch DataOrder::Batch(int64_t cursor) {
  const int64_t epoch = EpochOf(cursor);
  PlanEpoch(epoch);
  int64_t place_in_row = plan_[static_cast<size_t>(cursor - BatchesBefore(epoch))], bucket = 0;
  std::pair<int64_t, int64_t> row = BatchesOf(buckets_[0], epoch);
  while (place_in_row >= row.second - row.first) {
    place_in_row -= row.second - row.first;
    row = BatchesOf(buckets_[static_cast<size_t>(++bucket)], epoch);
  }
  const int64_t batch = row.first + place_in_row;
  const std::vector<Entry>& entries = buckets_[static_cast<size_t>(bucket)];
  const auto count = static_cast<int64_t>(entries.size());
  GlobalBatch result = {.epoch = epoch, .bucket = bucket, .visits = {}};
  for (int64_t place = batch * batch_size_; place < (batch + 1) * batch_size_; ++place) {
    const int64_t entry_epoch = place / count;
    const uint32_t index = ShuffleOf(static_cast<size_t>(bucket), entry_epoch)[static_cast<size_t>(place % count)];
    const Entry& entry = entries[index];
    result.visits.push_back({entry.id, entry_epoch * int64_t{entry.repeats} + entry.copy});
  }
  return result;
}

std::span<const SampleVisit> SliceOf(const GlobalBatch& batch, int rank, int ranks) {
  const size_t share = batch.visits.size() / static_cast<size_t>(ranks);
  return std::span(batch.visits).subspan(static_cast<size_t>(rank) * share, share);
}

}  // namespace tessera::runtime
