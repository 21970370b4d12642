// How a process that starts gets back what is queued: rows are read and parsed by one thread and handed out by another.
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "server/jobs/sqlite_job_store.h"
#include "server/jobs/stored_job.h"

namespace tessera {
namespace {

struct Row {
  TaskRow task;
  std::string job, tenant;
  absl::Time created;
  std::optional<absl::Time> deadline;
  absl::StatusOr<StoredJob> stored = absl::UnknownError("not read yet");
};

// The same rows again and again, each filled by the reader alone: memory then belongs to one thread, and an allocator
// that two threads share would eat up what the second one gains.
struct Batch {
  std::vector<Row> rows = std::vector<Row>(512);
  size_t used = 0;
};

class BatchQueue {
 public:
  BatchQueue() {
    for (Batch& batch : batches_) empty_.push_back(&batch);
  }
  Batch* TakeEmpty() { return Take(empty_); }
  Batch* TakeFull() { return Take(full_); }
  void PutEmpty(Batch* batch) { Put(empty_, batch); }
  void PutFull(Batch* batch) { Put(full_, batch); }

 private:
  Batch* Take(std::deque<Batch*>& from) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&from] { return !from.empty(); });
    Batch* batch = from.front();
    from.pop_front();
    return batch;
  }
  void Put(std::deque<Batch*>& to, Batch* batch) {
    const std::lock_guard lock(mutex_);
    to.push_back(batch);
    changed_.notify_all();
  }

  Batch batches_[3];
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Batch*> empty_, full_;  // guarded by mutex_
};

void Fill(const QueueEntry& entry, const RecordIds& ids, const Row* before, Row& row) {
  row.task = entry.task;
  if (before != nullptr && before->task.job == entry.task.job) {
    row.stored = before->stored;
  } else {
    row.stored = entry.request.ok() ? ParseStoredJob(entry.job.request) : entry.request;
  }
  if (!row.stored.ok()) return;
  row.job = ids.JobId(entry.job.number, entry.job.token);
  row.tenant = entry.job.tenant;
  row.created = entry.job.created;
  row.deadline = entry.job.deadline;
}

// The last batch is one that is not full.
absl::Status ReadQueue(SqliteDatabase& database, const RecordIds& ids, BatchQueue& batches) {
  Batch* batch = batches.TakeEmpty();
  absl::Status status = VisitQueue(database, [&](const QueueEntry& entry) {
    Fill(entry, ids, batch->used == 0 ? nullptr : &batch->rows[batch->used - 1], batch->rows[batch->used]);
    if (++batch->used < batch->rows.size()) return;
    batches.PutFull(batch);
    batch = batches.TakeEmpty();
  });
  batches.PutFull(batch);
  return status;
}

}  // namespace

absl::StatusOr<Recovery> SqliteJobStore::Recover(absl::FunctionRef<void(const QueuedTask&)> visit) {
  Recovery recovery = recovered_;
  ASSIGN_OR_RETURN(const std::vector<std::string> files, options_.files->List());
  for (const std::string& file : files) {
    if (absl::StrContains(file, kTemporaryMark)) disk_.Remove(file);
  }

  BatchQueue batches;
  absl::Status status;
  std::thread reader(
      [&] { status = Read([&](SqliteDatabase& database) { return ReadQueue(database, ids_, batches); }); });
  std::vector<std::pair<uint64_t, absl::Status>> damaged;
  for (bool last = false; !last;) {
    Batch* batch = batches.TakeFull();
    for (size_t i = 0; i < batch->used; ++i) {
      const Row& row = batch->rows[i];
      if (!row.stored.ok()) {
        damaged.emplace_back(row.task.number, row.stored.status());
        continue;
      }
      ++recovery.queued;
      visit({.id = row.task.number,
             .index = static_cast<int32_t>(row.task.number - row.task.job),
             .job = row.job,
             .tenant = row.tenant,
             .blame = row.task.blame,
             .created = row.created,
             .deadline = row.deadline,
             .trace_parent = row.stored->trace_parent,
             .request = &row.stored->request});
    }
    last = batch->used < batch->rows.size();
    batch->used = 0;
    batches.PutEmpty(batch);
  }
  reader.join();
  if (!status.ok()) return status;
  for (const auto& [task, error] : damaged) {
    RETURN_IF_ERROR(FailQueued(task, error));
    ++recovery.damaged;
  }
  return recovery;
}

}  // namespace tessera
