// The folder of a batch run: the images, and what became of each item, so that a run that was ended at any moment goes
// on where it was.
//
//     DIR/manifest.jsonl                 one line an item in the order of the input; written when all items have ended
//     DIR/images/000/000123.png          of item 123; 000123-1.png is the second one of an item with several
//     DIR/run/run.json                   what all processes of the run agree on
//     DIR/run/journal-0-of-1.jsonl       what has ended, in the order in which it did, with times; one file a shard
//
// An item counts as ended once its line in a journal is durable, which it is after its images are. Several processes,
// one for each shard, may work in one folder.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "server/jobs/process_lock.h"

namespace tessera::client {

struct Shard {
  int32_t index = 0;
  int32_t count = 1;

  bool Has(int64_t item) const { return item % count == index; }
};

struct RunImage {
  std::string file;  // below the folder of the run
  uint64_t seed = 0;
  int32_t width = 0;
  int32_t height = 0;
  uint64_t bytes = 0;
  std::string digest;  // SHA-256 of the file, 64 hexadecimal digits
};

// An item that has ended.
struct RunEntry {
  int64_t index = 0;
  std::string item_digest;
  std::string custom_id;
  std::vector<RunImage> images;  // none: it has failed
  absl::Status error;
  double seconds = 0;  // from its submission to its end
};

class RunFolder final {
 public:
  // Makes the folder or goes on with the run in it. FAILED_PRECONDITION where it holds other files, where its run has
  // another seed than `seed`, or where another process works on the shard.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Open(const std::string& path, Shard shard,
                                                         std::optional<uint64_t> seed);

  uint64_t seed() const { return seed_; }
  std::string service_folder() const;  // for what the workers of this shard need

  // What has become of the item; null: it has not ended. FAILED_PRECONDITION where the run had another item in its
  // place.
  absl::StatusOr<const RunEntry*> Find(int64_t index, const std::string& item_digest) const;

  // The image's name below the folder.
  static std::string ImageName(int64_t item, int32_t image, int32_t images, const std::string& ending);

  // Thread-safe. Return once it is durable; RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE where it cannot be written.
  absl::Status WriteImage(const std::string& name, const std::string& bytes);
  absl::Status Append(const RunEntry& entry);

  // Of all shards, if they have ended `items` in all; whether they have.
  absl::StatusOr<bool> WriteManifest(int64_t items) const;

 private:
  RunFolder(std::string path, Shard shard) : path_(std::move(path)), shard_(shard) {}

  absl::Status OpenRun(std::optional<uint64_t> seed);
  absl::StatusOr<std::map<int64_t, RunEntry>> ReadJournals() const;
  absl::Status OpenJournal();
  std::string JournalPath() const;

  const std::string path_;
  const Shard shard_;
  uint64_t seed_ = 0;
  server::ProcessLock lock_;
  std::map<int64_t, RunEntry> entries_;  // as they were at the start
  std::mutex mutex_;
  base::FileDescriptor journal_;  // guarded by mutex_
};

// The seed of the first image of an item that says none: a function of the run's seed and the item's index.
uint64_t SeedOfItem(uint64_t run_seed, int64_t index);

}  // namespace tessera::client
