#include "server/jobs/group_commit.h"

#include <algorithm>
#include <future>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/threads/start_thread.h"

namespace tessera::server {
namespace {

// Bounds the time for which the last change of a burst waits for its commit.
constexpr size_t kMaxChanges = 512;

absl::Status Do(SqliteDatabase& database, const char* sql) {
  absl::StatusOr<SqliteStatement> statement = database.Prepare(sql);
  return statement.ok() ? statement->Run() : statement.status();
}

absl::Status ApplyInSavepoint(SqliteDatabase& database, const GroupCommit::Change& change) {
  RETURN_IF_ERROR(Do(database, "SAVEPOINT change"));
  absl::Status result = change.apply(database);
  if (IsStorageFailure(result)) return result;
  absl::Status end = result.ok() ? absl::OkStatus() : Do(database, "ROLLBACK TO change");
  end.Update(Do(database, "RELEASE change"));
  return end.ok() ? result : end;
}

}  // namespace

GroupCommit::GroupCommit(std::unique_ptr<SqliteDatabase> database, CommitHooks hooks)
    : database_(std::move(database)), hooks_(std::move(hooks)), writer_(base::StartThread([this] { Write(); })) {}

GroupCommit::~GroupCommit() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  writer_.join();
}

void GroupCommit::Post(Change change) {
  bool wake;
  {
    const std::lock_guard lock(mutex_);
    wake = waiting_.empty() && !writing_;
    waiting_.push_back(std::move(change));
  }
  if (wake) changed_.notify_one();
}

absl::Status GroupCommit::Run(const char* name, std::function<absl::Status(SqliteDatabase&)> apply,
                              Durability durability) {
  std::promise<absl::Status> result;
  Change change{.name = name,
                .apply = std::move(apply),
                .done = [&result](absl::Status status) { result.set_value(std::move(status)); },
                .durability = durability};
  bool writes;
  {
    const std::lock_guard lock(mutex_);
    writes = !writing_ && waiting_.empty();
    if (writes) writing_ = true;
  }
  if (!writes) {
    Post(std::move(change));
    return result.get_future().get();
  }
  std::vector<Change> changes;
  changes.push_back(std::move(change));
  WriteAll(std::move(changes));
  bool wake;
  {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    wake = !waiting_.empty() || ending_;
  }
  if (wake) changed_.notify_one();
  return result.get_future().get();
}

absl::Status GroupCommit::SetSyncing(bool syncing) {
  if (syncing == syncing_) return absl::OkStatus();
  absl::Status set = database_->Execute(syncing ? "PRAGMA synchronous=FULL" : "PRAGMA synchronous=NORMAL");
  if (set.ok()) syncing_ = syncing;
  return set;
}

void GroupCommit::Reach(const Change& change, absl::string_view where) const {
  if (hooks_.at_point) hooks_.at_point(absl::StrCat(change.name, where));
}

absl::StatusOr<std::vector<absl::Status>> GroupCommit::WriteTogether(const std::vector<Change>& changes) {
  std::vector<absl::Status> results;
  absl::Status failure = hooks_.may_write ? hooks_.may_write() : absl::OkStatus();
  failure.Update(SetSyncing(
      std::ranges::any_of(changes, [](const Change& change) { return change.durability == Durability::kSynced; })));
  if (failure.ok()) failure = Do(*database_, "BEGIN IMMEDIATE");
  for (size_t i = 0; failure.ok() && i < changes.size(); ++i) {
    Reach(changes[i], ".begin");
    absl::Status result = ApplyInSavepoint(*database_, changes[i]);
    if (IsStorageFailure(result)) failure = result;
    results.push_back(std::move(result));
  }
  if (failure.ok()) {
    for (const Change& change : changes) Reach(change, ".before_commit");
    failure = Do(*database_, "COMMIT");
  }
  if (failure.ok()) return results;
  // SQLite has already ended the transaction after some failures.
  if (database_->InTransaction()) database_->Execute("ROLLBACK").IgnoreError();
  return failure;
}

void GroupCommit::WriteAll(std::vector<Change> changes) {
  absl::StatusOr<std::vector<absl::Status>> results = WriteTogether(changes);
  if (!results.ok() && changes.size() > 1) {
    std::vector<absl::Status> single;
    for (Change& change : changes) {
      std::vector<Change> alone;
      alone.push_back(change);
      const absl::StatusOr<std::vector<absl::Status>> result = WriteTogether(alone);
      single.push_back(result.ok() ? result->front() : result.status());
    }
    results = std::move(single);
  } else if (!results.ok()) {
    results = std::vector<absl::Status>{results.status()};
  }
  for (size_t i = 0; i < changes.size(); ++i) {
    if ((*results)[i].ok()) Reach(changes[i], ".after_commit");
    if (hooks_.failed && IsStorageFailure((*results)[i])) hooks_.failed((*results)[i]);
    changes[i].done(std::move((*results)[i]));
  }
}

void GroupCommit::Write() {
  while (true) {
    std::vector<Change> changes;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return !writing_ && (ending_ || !waiting_.empty()); });
      if (waiting_.empty()) return;
      writing_ = true;
      if (waiting_.size() <= kMaxChanges) {
        changes.swap(waiting_);
      } else {
        const auto end = waiting_.begin() + kMaxChanges;
        changes.assign(std::make_move_iterator(waiting_.begin()), std::make_move_iterator(end));
        waiting_.erase(waiting_.begin(), end);
      }
    }
    WriteAll(std::move(changes));
    const std::lock_guard lock(mutex_);
    writing_ = false;
  }
}

}  // namespace tessera::server
