// GroupCommit writes changes one transaction at a time: changes that wait at the same time share one transaction and
// one sync of the disk.
//
// A thread writes posted and waiting changes. A caller of Run writes directly if no write is in progress, which saves
// the two thread switches that matter to a single caller on a busy machine.
//
// A change that matters only while this process lives may be committed without a sync: after a power loss it may or may
// not have happened, but anything committed and synced after it proves that it has.
//
// Each change has its savepoint: a refused change (a row in another state) leaves no trace and does not affect the
// others. If the storage fails in a shared transaction, the transaction is rolled back and each of its changes is
// repeated in a separate one, so that a change that cannot be made (a damaged page) fails alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "server/jobs/failpoint.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {

// Hooks around the database writes. Each may be empty; the thread that writes calls them.
struct CommitHooks {
  AtPoint at_point;
  std::function<absl::Status()> may_write;          // before a transaction: an error fails all its changes
  std::function<void(const absl::Status&)> failed;  // the storage has refused a change, also when it was repeated alone
};

enum class Durability : uint8_t { kSynced, kWithTheNextSync };

class GroupCommit final {
 public:
  struct Change {
    const char* name = "";  // prefix of the failpoints of the change: "NAME.begin", "NAME.before_commit" …
    std::function<absl::Status(SqliteDatabase&)> apply;  // may be called twice; the last result counts
    std::function<void(absl::Status)> done;              // after the commit, or with the error that prevented it
    Durability durability = Durability::kSynced;
  };

  GroupCommit(std::unique_ptr<SqliteDatabase> database, CommitHooks hooks);
  ~GroupCommit();  // makes the waiting changes first

  GroupCommit(const GroupCommit&) = delete;
  GroupCommit& operator=(const GroupCommit&) = delete;

  // Thread-safe. The thread that writes calls `apply` and `done`, one at a time.
  void Post(Change change);

  // Posts a change and waits until it is done. Must not be called from `apply` or `done`.
  absl::Status Run(const char* name, std::function<absl::Status(SqliteDatabase&)> apply,
                   Durability durability = Durability::kSynced);

 private:
  void Write();
  void WriteAll(std::vector<Change> changes);
  // Returns the results of the changes, or the storage failure that rolled all of them back.
  absl::StatusOr<std::vector<absl::Status>> WriteTogether(const std::vector<Change>& changes);
  absl::Status SetSyncing(bool syncing);  // for later transactions
  void Reach(const Change& change, absl::string_view where) const;

  const std::unique_ptr<SqliteDatabase> database_;
  const CommitHooks hooks_;
  bool syncing_ = true;  // used by the thread that writes

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Change> waiting_;  // guarded by mutex_
  bool writing_ = false;         // guarded by mutex_
  bool ending_ = false;          // guarded by mutex_

  std::thread writer_;
};

}  // namespace tessera::server
