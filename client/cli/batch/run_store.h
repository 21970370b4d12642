// RunStore is the job store of a batch run. Jobs that have not ended are kept in memory, because they can be read again
// from the input; those that have ended are in the run's folder.
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/time/clock.h"
#include "client/cli/batch/run_folder.h"
#include "server/jobs/job_store.h"
#include "server/jobs/new_job.h"

namespace tessera::client {

class RunStore final : public server::JobStore {
 public:
  struct Events {
    // All images of the job with this idempotency key have ended. Returns once that is durable; called again after an
    // error. On any thread.
    std::function<absl::Status(const std::string& key, const std::vector<RunImage>& images, const absl::Status& error)>
        ended;
    // The folder cannot be written.
    std::function<void(const absl::Status& failure)> disk;
  };

  RunStore(RunFolder& folder, Events events) : folder_(folder), events_(std::move(events)) {}

  // Returns the jobs that no worker has started, in the order of submission.
  std::vector<control::JobParameters> NextJobs() const;

  absl::StatusOr<server::Recovery> Recover(absl::FunctionRef<void(const server::QueuedTask&)>) override {
    return server::Recovery();
  }
  // The job's idempotency key is its item's index.
  absl::StatusOr<server::SubmittedJob> Submit(const server::NewJob& job) override;
  void SubmitAsync(server::NewJob job, std::function<void(absl::StatusOr<server::SubmittedJob>)> done) override {
    done(Submit(job));
  }
  absl::StatusOr<std::optional<server::JobRecord>> FindSubmission(const std::string&,
                                                                  const server::IdempotencyKey&) override {
    return std::nullopt;
  }
  absl::StatusOr<server::ClaimedTask> Claim(uint64_t task) override;
  absl::Status Finish(const server::TaskAttempt& attempt, const std::string& file,
                      const server::ImageOrigin& origin) override;
  absl::Status Fail(const server::TaskAttempt& attempt, const absl::Status& error,
                    const server::KeyUsage& usage) override;
  absl::Status FailQueued(uint64_t task, const absl::Status& error) override;
  absl::Status GiveBack(absl::Span<const server::TaskAttempt> attempts) override;
  absl::StatusOr<std::vector<server::Verdict>> GroupDied(absl::Span<const server::TaskAttempt> attempts,
                                                         const std::string& reason) override;
  absl::StatusOr<server::JobRecord> Cancel(const std::string& tenant, const std::string& job) override;
  absl::StatusOr<server::JobRecord> Get(const std::string& tenant, const std::string& job) override;
  absl::StatusOr<server::JobRecordPage> List(const std::string&, int32_t, const std::string&,
                                             std::optional<server::JobState>) override {
    return server::JobRecordPage();
  }
  absl::StatusOr<base::SharedBytes> OpenImage(const std::string&, const std::string&) override {
    return absl::NotFoundError("the images of a run are in its folder");
  }
  absl::StatusOr<server::SweepReport> Sweep(int64_t) override { return server::SweepReport(); }
  int64_t result_bytes() const override { return result_bytes_; }
  bool has_too_many_bytes() const override { return false; }
  absl::Time Now() const override { return opened_ + (clock_.Elapsed() - opened_elapsed_); }
  std::array<int64_t, server::kTaskStates> Counts() const override { return {}; }
  server::StorageTrouble trouble() const override { return {}; }
  absl::Status CheckPlace() override { return absl::OkStatus(); }
  absl::Status TryWrite() override { return absl::OkStatus(); }

 private:
  struct Live {
    std::string key;
    server::JobRecord record;
    std::vector<RunImage> images;  // by index; finished images have a file
  };

  // These require mutex_.
  Live* FindJob(uint64_t task);
  absl::StatusOr<server::TaskRecord*> FindAttempt(const server::TaskAttempt& attempt);

  // Ends the task, and the job if it was the last one. After an error nothing has changed.
  absl::Status End(uint64_t task, server::TaskState state, const absl::Status& error);

  RunFolder& folder_;
  const Events events_;
  const base::SystemClock clock_;
  const absl::Time opened_ = clock_.Now();
  const absl::Duration opened_elapsed_ = clock_.Elapsed();
  std::atomic<int64_t> result_bytes_ = 0;

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::map<uint64_t, Live> jobs_;  // by first task
  uint64_t next_task_ = 1;
};

}  // namespace tessera::client
