// RunFolder is the folder of a batch run. It holds the images and the result of each item, so that a run that ended at
// any moment can continue.
//
//     DIR/manifest.jsonl                 one line per item in the order of the input; written when all items have ended
//     DIR/images/000/000123.png          image of item 123; 000123-1.png is the second of several images of an item
//     DIR/run/run.json                   what all processes of the run must agree on
//     DIR/run/journal-0-of-1.jsonl       ended items in the order in which they ended, with times; one file per shard
//
// An item has ended once its line in a journal is durable, which happens after its images are durable. Several
// processes, one per shard, may work in one folder. Files named in a journal are read only at the paths that the run
// would have written.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/files/file_descriptor.h"
#include "base/files/process_lock.h"
#include "client/cli/batch/run_journal.h"

namespace tessera::client {

struct Shard {
  int32_t index = 0;
  int32_t count = 1;

  bool Has(int64_t item) const { return item % count == index; }
};

// What all processes of a run must agree on. Without a seed or model, the run's values apply.
struct RunIdentity {
  std::optional<uint64_t> seed;
  std::string model;
  std::string files;  // digest of its files (client/cli/models/model_files.h); empty: a server has them
  std::string dtype;  // in which the model is served; empty: only the server knows it
};

// A file of the run that differs from what was written.
struct RunDamage {
  std::string file;  // below the folder of the run
  std::string what;  // "is missing"
};

class RunFolder final {
 public:
  // Creates the folder or continues the run in it. FAILED_PRECONDITION if it holds other files or a different run, or
  // if another process works on the shard.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Open(const std::string& path, Shard shard,
                                                         const RunIdentity& identity);

  uint64_t seed() const { return seed_; }
  const std::string& id() const { return id_; }  // unique id of the run
  std::string service_folder() const;            // folder for files of this shard's workers

  // Returns the item's entry when the folder was opened; null if it had not ended or its files are lost.
  // FAILED_PRECONDITION if the run has a different item at this index.
  absl::StatusOr<const RunEntry*> Find(int64_t index, const std::string& item_digest) const;
  // How many times the item had ended before and was, or is to be, made again.
  int64_t AttemptOf(int64_t index) const;
  const std::map<int64_t, RunEntry>& entries() const { return entries_; }  // of all shards, when the folder was opened

  // Thread-safe. They return once the data is durable; RESOURCE_EXHAUSTED if the disk is full, UNAVAILABLE if it cannot
  // be written. Append numbers the attempt.
  absl::Status WriteImage(const std::string& name, const std::string& bytes);
  absl::Status Append(RunEntry entry);

  // Returns the bytes of the image's file; FAILED_PRECONDITION if they are not those that were written.
  absl::StatusOr<std::string> ReadImage(const RunImage& image) const;

  // Reads the images of the entry and returns those that differ from what was written.
  absl::StatusOr<std::vector<RunDamage>> DamageOf(const RunEntry& entry) const;

  // Marks the items of these entries as not made and removes the manifest.
  absl::Status Forget(absl::Span<const RunEntry> entries);

  // Returns the current entries of all shards.
  absl::StatusOr<std::map<int64_t, RunEntry>> ReadJournals() const;

  // Writes the manifest of all shards if `items` items have ended, and returns whether it did. FAILED_PRECONDITION if
  // more have ended.
  absl::StatusOr<bool> WriteManifest(int64_t items) const;

 private:
  RunFolder(std::string path, Shard shard) : path_(std::move(path)), shard_(shard) {}

  absl::Status OpenRun(const RunIdentity& identity);
  // Checks that the recorded run uses the identity's model.
  absl::Status CheckModel(const RunIdentity& kept, const RunIdentity& identity) const;
  absl::Status OpenJournal();
  absl::Status MakeImageFolder(const std::string& folder);
  absl::Status AppendLines(const std::string& lines);
  std::string JournalPath() const;

  const std::string path_;
  const Shard shard_;
  uint64_t seed_ = 0;
  std::string id_;
  base::ProcessLock lock_;
  std::map<int64_t, RunEntry> entries_;  // as of the opening
  std::mutex mutex_;
  base::FileDescriptor journal_;  // guarded by mutex_
  std::mutex folders_mutex_;
  std::set<std::string> folders_;  // folders whose names are durable; guarded by folders_mutex_
};

// Returns the seed of the first image of an item without a seed: a function of the run's seed and the item's index.
uint64_t SeedOfItem(uint64_t run_seed, int64_t index);

}  // namespace tessera::client
