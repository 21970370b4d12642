#include "server/jobs/queue_reader.h"

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <thread>
#include <vector>

#include "base/threads/start_thread.h"
#include "server/jobs/stored_task.h"

namespace tessera::server {
namespace {

// Rows are reused, and only the reader fills them: memory then belongs to one thread. An allocator shared by two
// threads would cost as much as the second thread gains.
struct Batch {
  std::vector<StoredTask> rows = std::vector<StoredTask>(512);
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

void Fill(const QueueEntry& entry, const StoredTask* before, StoredTask& row) {
  row.row = entry;
  if (!entry.request.ok()) return;
  if (before != nullptr && before->row.task.job == entry.task.job) {
    row.row.request = before->row.request;
    row.job = before->job;
  } else {
    row.row.request = ParseStoredJob(entry.job.request, row.job);
  }
}

// A batch that is not full is the last one.
absl::Status FillBatches(SqliteDatabase& database, BatchQueue& batches) {
  Batch* batch = batches.TakeEmpty();
  absl::Status status = VisitQueue(database, [&](const QueueEntry& entry) {
    Fill(entry, batch->used == 0 ? nullptr : &batch->rows[batch->used - 1], batch->rows[batch->used]);
    if (++batch->used < batch->rows.size()) return;
    batches.PutFull(batch);
    batch = batches.TakeEmpty();
  });
  batches.PutFull(batch);
  return status;
}

}  // namespace

absl::Status ReadQueue(const std::function<absl::Status(const std::function<absl::Status(SqliteDatabase&)>&)>& read,
                       absl::FunctionRef<void(const StoredTask&)> visit) {
  BatchQueue batches;
  absl::Status status;
  std::thread reader = base::StartThread(
      [&] { status = read([&](SqliteDatabase& database) { return FillBatches(database, batches); }); });
  for (bool last = false; !last;) {
    Batch* batch = batches.TakeFull();
    for (size_t i = 0; i < batch->used; ++i) visit(batch->rows[i]);
    last = batch->used < batch->rows.size();
    batch->used = 0;
    batches.PutEmpty(batch);
  }
  reader.join();
  return status;
}

}  // namespace tessera::server
