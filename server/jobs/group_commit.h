// One writer at a time: the changes that wait at the same time share one transaction and one sync of the disk.
//
// A thread of its own writes what is posted and what waits. Who calls Run while nobody writes writes itself, which
// saves the two changes of thread that matter to a single caller on a busy machine.
//
// A change that nothing but the life of this process depends on may be committed without a sync of its own: after a
// loss of power it has happened or not, and whatever was committed after it and synced proves that it has.
//
// Each change stands in a savepoint of its own: one that is refused (a row in another state) leaves nothing behind and
// does not touch the others. When the storage fails under a shared transaction, it is rolled back and its changes are
// made once more, each in a transaction of its own, so that a change that cannot be made (a damaged page) fails alone.
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

// What stands beside the database: each may be empty, and is called by whoever writes.
struct CommitHooks {
  AtPoint at_point;
  std::function<absl::Status()> may_write;          // before a transaction: an error is that of all its changes
  std::function<void(const absl::Status&)> failed;  // the storage has refused a change for good
};

enum class Durability : uint8_t { kSynced, kWithTheNextSync };

class GroupCommit final {
 public:
  struct Change {
    const char* name = "";  // of the points that the change passes: "NAME.begin", "NAME.before_commit" …
    std::function<absl::Status(SqliteDatabase&)> apply;  // may be called twice; the last call counts
    std::function<void(absl::Status)> done;              // after the commit, or with the reason why there is none
    Durability durability = Durability::kSynced;
  };

  GroupCommit(std::unique_ptr<SqliteDatabase> database, CommitHooks hooks);
  ~GroupCommit();  // makes the changes that wait

  GroupCommit(const GroupCommit&) = delete;
  GroupCommit& operator=(const GroupCommit&) = delete;

  // Thread-safe. `apply` and `done` are called by whoever writes, one at a time.
  void Post(Change change);

  // Posts a change and waits for its end. Must not be called from `apply` or `done`.
  absl::Status Run(const char* name, std::function<absl::Status(SqliteDatabase&)> apply,
                   Durability durability = Durability::kSynced);

 private:
  void Write();
  void WriteAll(std::vector<Change> changes);
  // The results of the changes, or the failure of the storage that rolled all of them back.
  absl::StatusOr<std::vector<absl::Status>> WriteTogether(const std::vector<Change>& changes);
  absl::Status SetSyncing(bool syncing);  // of the transactions from now on
  void Reach(const Change& change, absl::string_view where) const;

  const std::unique_ptr<SqliteDatabase> database_;
  const CommitHooks hooks_;
  bool syncing_ = true;  // of whoever writes

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Change> waiting_;  // guarded by mutex_
  bool writing_ = false;         // guarded by mutex_
  bool ending_ = false;          // guarded by mutex_

  std::thread writer_;
};

}  // namespace tessera::server
