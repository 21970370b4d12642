// The folder of a batch run: the images, and what became of each item, so that a run that was ended at any moment goes
// on where it was.
//
//     DIR/manifest.jsonl                 one line an item in the order of the input; written when all items have ended
//     DIR/images/000/000123.png          of item 123; 000123-1.png is the second one of an item with several
//     DIR/run/run.json                   what all processes of the run agree on
//     DIR/run/journal-0-of-1.jsonl       what has ended, in the order in which it did, with times; one file a shard
//
// An item counts as ended once its line in a journal is durable, which it is after its images are. Several processes,
// one for each shard, may work in one folder. What a journal names is read only where the run itself would have put it.
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
#include "base/file_descriptor.h"
#include "base/process_lock.h"
#include "client/cli/batch/run_journal.h"

namespace tessera::client {

struct Shard {
  int32_t index = 0;
  int32_t count = 1;

  bool Has(int64_t item) const { return item % count == index; }
};

// What all processes of a run have to agree on. No seed, and no model: whatever the run has.
struct RunIdentity {
  std::optional<uint64_t> seed;
  std::string model;  // its name
  std::string files;  // the digest of its files (client/cli/models/model_files.h); empty: a server has them
  std::string dtype;  // it is served in; empty: a server knows it
};

// A file of the run that is not what was written.
struct RunDamage {
  std::string file;  // below the folder of the run
  std::string what;  // "is missing"
};

class RunFolder final {
 public:
  // Makes the folder or goes on with the run in it. FAILED_PRECONDITION where it holds other files, where its run is
  // another one, or where another process works on the shard.
  static absl::StatusOr<std::unique_ptr<RunFolder>> Open(const std::string& path, Shard shard,
                                                         const RunIdentity& identity);

  uint64_t seed() const { return seed_; }
  const std::string& id() const { return id_; }  // of the run, which no other one has
  std::string service_folder() const;            // for what the workers of this shard need

  // What had become of the item when the folder was opened; null: it had not ended, or its files are lost.
  // FAILED_PRECONDITION where the run had another item in its place.
  absl::StatusOr<const RunEntry*> Find(int64_t index, const std::string& item_digest) const;
  // How often the item had ended then and was, or is to be, made again.
  int64_t AttemptOf(int64_t index) const;
  const std::map<int64_t, RunEntry>& entries() const { return entries_; }  // of all shards, when it was opened

  // Thread-safe. Return once it is durable; RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE where it cannot be written.
  // Append numbers the attempt.
  absl::Status WriteImage(const std::string& name, const std::string& bytes);
  absl::Status Append(RunEntry entry);

  // The bytes of the image's file; FAILED_PRECONDITION where they are not what was written.
  absl::StatusOr<std::string> ReadImage(const RunImage& image) const;

  // Reads the images of the entry: those that are not what was written.
  absl::StatusOr<std::vector<RunDamage>> DamageOf(const RunEntry& entry) const;

  // The items of these entries are as if they had not been made, and there is no manifest any more.
  absl::Status Forget(absl::Span<const RunEntry> entries);

  // What has become of the items of all shards by now.
  absl::StatusOr<std::map<int64_t, RunEntry>> ReadJournals() const;

  // Of all shards, if they have ended `items` in all; whether they have. FAILED_PRECONDITION where they have more.
  absl::StatusOr<bool> WriteManifest(int64_t items) const;

 private:
  RunFolder(std::string path, Shard shard) : path_(std::move(path)), shard_(shard) {}

  absl::Status OpenRun(const RunIdentity& identity);
  // Whether the run, as it was recorded, is of the identity's model.
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
  std::map<int64_t, RunEntry> entries_;  // as they were at the start
  std::mutex mutex_;
  base::FileDescriptor journal_;  // guarded by mutex_
  std::mutex folders_mutex_;
  std::set<std::string> folders_;  // whose names are durable; guarded by folders_mutex_
};

// The seed of the first image of an item that says none: a function of the run's seed and the item's index.
uint64_t SeedOfItem(uint64_t run_seed, int64_t index);

}  // namespace tessera::client
