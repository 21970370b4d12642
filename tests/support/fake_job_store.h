// FakeJobStore keeps jobs in memory, for tests of the code that uses a store. Hooks run code during a call.
#pragma once

#include <array>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/api/job.h"
#include "server/jobs/job_store.h"
#include "server/jobs/new_job.h"

namespace tessera {

class FakeJobStore final : public server::JobStore {
 public:
  // Called without the store's lock: before a claim, after a job was read, and before a result is stored.
  std::function<void()> on_claim, on_get, on_finish;

  // From now on, every change fails according to `state`, and the store reports that state.
  void SetTrouble(server::StorageState state, absl::Duration duration = absl::ZeroDuration()) {
    const std::lock_guard lock(mutex_);
    trouble_ = {.state = state, .duration = duration};
  }
  void SetNow(absl::Time now) { now_ = now; }
  int64_t sweeps() const { return sweeps_; }

  absl::StatusOr<server::Recovery> Recover(absl::FunctionRef<void(const server::QueuedTask&)> visit) override {
    return server::Recovery();
  }

  absl::StatusOr<server::SubmittedJob> Submit(const server::NewJob& job) override {
    const std::lock_guard lock(mutex_);
    if (!Writes().ok()) return Writes();
    server::JobRecord record = {
        .tenant = job.tenant, .request = std::make_shared<const server::JobRequest>(job.request), .created = now_};
    record.id = absl::StrCat("job-", jobs_.size() + 1);
    if (job.request.timeout) record.deadline = now_ + *job.request.timeout;
    for (int32_t index = 0; index < job.request.count; ++index) {
      record.tasks.push_back({.id = ++last_task_, .index = index});
      job_of_[last_task_] = record.id;
    }
    jobs_[record.id] = record;
    return server::SubmittedJob{.job = record};
  }
  void SubmitAsync(server::NewJob job, std::function<void(absl::StatusOr<server::SubmittedJob>)> done) override {
    done(Submit(job));
  }
  absl::StatusOr<std::optional<server::JobRecord>> FindSubmission(const std::string&,
                                                                  const server::IdempotencyKey&) override {
    return std::nullopt;
  }

  absl::StatusOr<server::ClaimedTask> Claim(uint64_t id) override {
    if (on_claim) on_claim();
    const std::lock_guard lock(mutex_);
    if (!Writes().ok()) return Writes();
    server::TaskRecord& task = TaskOf(id);
    if (absl::Status valid = server::CheckMove(task.state, server::TaskState::kRunning); !valid.ok()) return valid;
    task.state = server::TaskState::kRunning;
    task.started = now_;
    return server::ClaimedTask{.claim = {.task = id, .attempt = ++task.attempt},
                               .parameters = jobs_.at(job_of_.at(id)).request->parameters};
  }
  absl::Status Finish(const server::TaskAttempt& attempt, const std::string& file,
                      const server::ImageOrigin& origin) override {
    if (on_finish) on_finish();
    return End(attempt, server::TaskState::kDone, [&](server::TaskRecord& task) {
      usage_.push_back(origin.usage);
      task.image =
          server::StoredImage{.origin = origin, .id = absl::StrCat("img-", attempt.task), .bytes = file.size()};
    });
  }
  absl::Status Fail(const server::TaskAttempt& attempt, const absl::Status& error,
                    const server::KeyUsage& usage) override {
    return End(attempt, server::TaskState::kFailed, [&](server::TaskRecord& task) {
      usage_.push_back(usage);
      task.error = error;
    });
  }
  absl::Status AddUsage(const server::KeyUsage& usage) override {
    const std::lock_guard lock(mutex_);
    usage_.push_back(usage);
    return absl::OkStatus();
  }
  // Returns what Finish, Fail and AddUsage were to count, in the order of the calls.
  std::vector<server::KeyUsage> usage() const {
    const std::lock_guard lock(mutex_);
    return usage_;
  }
  absl::Status FailQueued(uint64_t id, const absl::Status& error) override {
    const std::lock_guard lock(mutex_);
    if (!Writes().ok()) return Writes();
    server::TaskRecord& task = TaskOf(id);
    if (task.state != server::TaskState::kQueued) return absl::FailedPreconditionError("it is not queued");
    task.state = server::TaskState::kFailed;
    task.error = error;
    return absl::OkStatus();
  }
  absl::Status GiveBack(absl::Span<const server::TaskAttempt> attempts) override {
    for (const server::TaskAttempt& attempt : attempts) {
      End(attempt, server::TaskState::kQueued, [](server::TaskRecord&) {}).IgnoreError();
    }
    const std::lock_guard lock(mutex_);
    return Writes();
  }
  absl::StatusOr<std::vector<server::Verdict>> GroupDied(absl::Span<const server::TaskAttempt> attempts,
                                                         const std::string&) override {
    if (absl::Status given = GiveBack(attempts); !given.ok()) return given;
    std::vector<server::Verdict> verdicts;
    for (const server::TaskAttempt& attempt : attempts)
      verdicts.push_back({.attempt = attempt, .state = StateOfTask(attempt.task)});
    return verdicts;
  }

  absl::StatusOr<server::JobRecord> Cancel(const std::string& tenant, const std::string& job) override {
    const std::lock_guard lock(mutex_);
    if (!Writes().ok()) return Writes();
    const auto found = jobs_.find(job);
    if (found == jobs_.end() || found->second.tenant != tenant) return absl::NotFoundError("there is no such job");
    for (server::TaskRecord& task : found->second.tasks) {
      if (!server::IsEnded(task.state)) task.state = server::TaskState::kCancelled;
    }
    return found->second;
  }
  absl::StatusOr<server::JobRecord> Get(const std::string& tenant, const std::string& job) override {
    absl::StatusOr<server::JobRecord> record = absl::NotFoundError("there is no such job");
    {
      const std::lock_guard lock(mutex_);
      const auto found = jobs_.find(job);
      if (found != jobs_.end() && found->second.tenant == tenant) record = found->second;
    }
    if (auto hook = std::exchange(on_get, nullptr)) hook();
    return record;
  }
  absl::StatusOr<server::JobRecordPage> List(const std::string&, int32_t, const std::string&,
                                             std::optional<server::JobState>) override {
    return server::JobRecordPage();
  }
  absl::StatusOr<base::SharedBytes> OpenImage(const std::string&, const std::string&) override {
    return absl::NotFoundError("there is no such image");
  }

  absl::StatusOr<server::SweepReport> Sweep(int64_t) override {
    ++sweeps_;
    return server::SweepReport();
  }
  int64_t result_bytes() const override { return 0; }
  bool has_too_many_bytes() const override { return false; }
  absl::Time Now() const override { return now_; }
  std::array<int64_t, server::kTaskStates> Counts() const override { return {}; }
  server::StorageTrouble trouble() const override {
    const std::lock_guard lock(mutex_);
    return trouble_;
  }
  absl::Status CheckPlace() override { return absl::OkStatus(); }
  absl::Status TryWrite() override {
    const std::lock_guard lock(mutex_);
    return Writes();
  }

  server::TaskState StateOfTask(uint64_t id) {
    const std::lock_guard lock(mutex_);
    return TaskOf(id).state;
  }

 private:
  absl::Status Writes() const {
    return trouble_.state == server::StorageState::kOk ? absl::OkStatus()
                                                       : absl::ResourceExhaustedError("the disk is full");
  }
  server::TaskRecord& TaskOf(uint64_t id) {
    server::JobRecord& job = jobs_.at(job_of_.at(id));
    return job.tasks.at(id - job.tasks[0].id);
  }
  absl::Status End(const server::TaskAttempt& attempt, server::TaskState state,
                   const std::function<void(server::TaskRecord&)>& change) {
    const std::lock_guard lock(mutex_);
    if (!Writes().ok()) return Writes();
    server::TaskRecord& task = TaskOf(attempt.task);
    if (task.state != server::TaskState::kRunning || task.attempt != attempt.attempt) {
      return absl::FailedPreconditionError("it is not running as that attempt");
    }
    task.state = state;
    change(task);
    return absl::OkStatus();
  }

  mutable std::mutex mutex_;
  server::StorageTrouble trouble_;
  std::vector<server::KeyUsage> usage_;
  std::map<std::string, server::JobRecord> jobs_;
  std::map<uint64_t, std::string> job_of_;
  uint64_t last_task_ = 0;
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
  int64_t sweeps_ = 0;
};

}  // namespace tessera
