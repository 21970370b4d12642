// What the job store keeps and tells of a job and of its tasks. Plain values.
//
// A job is what a caller submitted; it has one task for each image. A task is what a worker runs (StartJob of the
// control channel): it has an attempt number, which counts its claims and fences off whoever held it before.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/api/job.h"
#include "server/jobs/task_state.h"

namespace tessera::server {

inline constexpr size_t kMaxTenantBytes = 256;

// Who may report about a task: whoever claimed it last.
struct TaskAttempt {
  uint64_t task = 0;
  int32_t attempt = 0;

  bool operator==(const TaskAttempt&) const = default;
};

// How an image was made; kept beside its file.
struct ImageOrigin {
  int32_t width = 0;
  int32_t height = 0;
  ImageFormat format = ImageFormat::kPng;
  std::string layout;  // text of the layout
  bool lossless = true;
  std::vector<std::string> warnings;  // sentences for the user

  bool operator==(const ImageOrigin&) const = default;
};

struct StoredImage {
  ImageOrigin origin;
  std::string id;      // unguessable
  std::string file;    // name among the ResultStore
  uint64_t bytes = 0;  // of the file
  std::string digest;  // SHA-256 of the file, 32 bytes
};

struct TaskRecord {
  uint64_t id = 0;    // never used again; never 0
  int32_t index = 0;  // within the job; the task's seed is the job's plus this
  TaskState state = TaskState::kQueued;
  int32_t attempt = 0;     // claims so far
  bool elsewhere = false;  // it runs, and another process has claimed it
  Blame blame;
  std::optional<absl::Time> started;  // of the last claim
  std::optional<absl::Time> ended;
  absl::Status error;                // of a failed or quarantined task: fit for the user
  std::optional<StoredImage> image;  // of a done one
};

struct JobRecord {
  std::string id;  // of record_ids.h
  std::string tenant;
  JobRequest request;
  std::string trace_parent;
  absl::Time created = absl::InfinitePast();
  std::optional<absl::Time> deadline;
  std::optional<absl::Duration> kept_until;  // of an ended job, in running time (store_time.h)
  std::vector<TaskRecord> tasks;             // by index, never empty
};

// Done when all tasks are; failed, else cancelled, when any is and none is left to run; running when any runs or has
// ended; else queued. Quarantined counts as failed.
JobState StateOf(absl::Span<const TaskState> tasks);
JobState StateOf(const JobRecord& job);

// Of the files of its finished images.
int64_t ImageBytesOf(const JobRecord& job);

// The error that a failed task keeps; never OK.
absl::Status ReasonOf(const absl::Status& error);

// What a job's first error was; OK when it has none.
absl::Status ErrorOf(const JobRecord& job);

struct NewJob {
  std::string tenant;  // 1 … kMaxTenantBytes bytes
  JobRequest request;  // validated; count 1 … kMaxImageCount
  std::optional<IdempotencyKey> idempotency;
  std::string trace_parent;
};

// A queued task, with what a scheduler must know of it.
struct QueuedTask {
  uint64_t id = 0;
  int32_t index = 0;
  std::string job;
  std::string tenant;
  Blame blame;
  absl::Time created = absl::InfinitePast();
  std::optional<absl::Time> deadline;
  std::string trace_parent;
  const JobRequest* request = nullptr;  // valid during the call that hands this out
};

// Of one of its tasks, as long as the record lives.
QueuedTask QueuedTaskOf(const JobRecord& job, const TaskRecord& task);

struct ClaimedTask {
  TaskAttempt claim;
  control::JobParameters parameters;  // with this task's own seed
};

}  // namespace tessera::server
