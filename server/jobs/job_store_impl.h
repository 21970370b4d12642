// What is behind JobStore; included by its sources only.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/jobs/group_commit.h"
#include "server/jobs/job_rows.h"
#include "server/jobs/job_store.h"
#include "server/jobs/process_lock.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/storage_health.h"
#include "server/jobs/storage_place.h"

namespace tessera {

// In the names of the files that a killed process leaves half-written; atomic_file.h makes them.
inline constexpr char kTemporaryMark[] = ".tessera-";

// Of one attempt, so that an old one can never replace what a newer one wrote.
std::string ResultFileName(const TaskAttempt& attempt);

// Of what is written to learn whether there is room again.
inline constexpr char kTrialFile[] = "trial";

class JobStore::Impl {
 public:
  Impl(const JobStoreOptions& options, ProcessLock lock, std::unique_ptr<SqliteDatabase> writer,
       std::unique_ptr<SqliteDatabase> reader, RecordIds ids, absl::Time now, uint64_t next_number)
      : options_(options),
        lock_(std::move(lock)),
        place_(PlaceOf(options)),
        opened_(now),
        opened_elapsed_(options.clock->Elapsed()),
        health_(*options.clock, options.on_storage),
        reader_(std::move(reader)),
        ids_(std::move(ids)),
        next_number_(next_number),
        commit_(std::move(writer), {.at_point = options.at_point,
                                    .may_write = [this] { return CheckPlace(); },
                                    .failed = [this](const absl::Status& failure) { OnDatabaseFailure(failure); }}) {}

  absl::Time Now() const { return opened_ + (options_.clock->Elapsed() - opened_elapsed_); }
  absl::Duration Elapsed() const { return options_.clock->Elapsed(); }

  // A change that moves tasks: the counts follow when it is committed.
  absl::Status Change(const char* name, std::function<absl::Status(SqliteDatabase&, StateCounts&)> apply,
                      Durability durability = Durability::kSynced) {
    StateCounts delta{};
    const auto counted = [&](SqliteDatabase& database) {
      delta = {};
      return apply(database, delta);
    };
    absl::Status status = commit_.Run(name, counted, durability);
    if (status.ok()) Count(delta);
    return status;
  }

  void Count(const StateCounts& delta) {
    for (size_t state = 0; state < delta.size(); ++state) counts_[state] += delta[state];
  }

  // Moves one running task.
  absl::Status End(const char* name, const TaskAttempt& attempt, const TaskMove& move) {
    return Change(name, [&](SqliteDatabase& database, StateCounts& counts) {
      const absl::StatusOr<TaskRow> task = FindAttempt(database, attempt);
      if (!task.ok()) return task.status();
      TaskMove with_blame = move;
      with_blame.blame = task->blame;
      return MoveTask(database, *task, with_blame, counts);
    });
  }

  TaskMove MoveTo(TaskState to) const { return {.to = to, .now = Now(), .retention = options_.retention}; }

  template <typename Call>
  auto Read(Call call) {
    const std::lock_guard lock(read_mutex_);
    auto result = call(*reader_);
    if constexpr (requires { result.status(); }) {
      if (absl::IsDataLoss(result.status())) OnDatabaseFailure(result.status());
    }
    return result;
  }

  absl::Status CheckPlace() {
    absl::Status place = place_.Check();
    place.Update(options_.files->CheckPlace());
    if (!place.ok()) health_.Fail(StorageState::kMoved, place);
    return place;
  }

  // Of a change, or of a read that has found damage. What is ours alone, such as a row that is not what was written, is
  // no failure of the storage.
  void OnDatabaseFailure(const absl::Status& failure) {
    if (!IsStorageFailure(failure) || absl::IsInternal(failure)) return;
    health_.Fail(StateAfter(failure), failure);
  }

  static StorageState StateAfter(const absl::Status& failure) {
    if (absl::IsDataLoss(failure)) return StorageState::kDamaged;
    return absl::IsResourceExhausted(failure) ? StorageState::kFull : StorageState::kFailing;
  }

  // A result's file, and what its failure says of the disk.
  absl::Status WriteFile(const std::string& name, const std::string& bytes) {
    if (absl::Status place = CheckPlace(); !place.ok()) return place;
    absl::Status written = options_.files->Write(name, bytes);
    if (!written.ok()) health_.Fail(StateAfter(written), written, bytes.size());
    return written;
  }

  // Files that could not be removed are removed later.
  void RemoveFiles(const JobRecord& job) {
    for (const TaskRecord& task : job.tasks) {
      if (task.image) RemoveFile(task.image->file);
    }
  }
  void RemoveFile(const std::string& file) {
    if (options_.files->Remove(file).ok()) return;
    const std::lock_guard lock(left_over_mutex_);
    left_over_.push_back(file);
  }

  // False for a file that belongs to no task that runs or is done.
  bool IsWanted(const std::string& file);

  // The files that are open; another layer's files are in no folder.
  static StoragePlace PlaceOf(const JobStoreOptions& options) {
    StoragePlace place;
    if (!options.vfs.empty()) return place;
    for (const char* suffix : {"", "-wal", ".lock"}) place.Remember(options.path + suffix);
    return place;
  }

  const JobStoreOptions options_;
  const ProcessLock lock_;
  const StoragePlace place_;
  const absl::Time opened_;
  const absl::Duration opened_elapsed_;

  StorageHealth health_;
  std::mutex trial_mutex_;  // one trial of the disk at a time

  std::mutex read_mutex_;
  const std::unique_ptr<SqliteDatabase> reader_;  // guarded by read_mutex_

  const RecordIds ids_;
  uint64_t next_number_;  // of whoever writes
  int64_t given_back_ = 0;
  int64_t damaged_ = 0;  // finished tasks, found when the store was opened
  std::array<std::atomic<int64_t>, kTaskStates> counts_{};
  std::atomic<int64_t> result_bytes_ = 0;
  std::atomic<int64_t> bytes_after_sweep_ = -1;  // that a sweep could not make fewer

  std::mutex left_over_mutex_;
  std::vector<std::string> left_over_;  // guarded by left_over_mutex_
  std::atomic<bool> orphans_known_ = false;

  GroupCommit commit_;  // last: its thread uses the others
};

}  // namespace tessera
