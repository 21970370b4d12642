// JobRecord holds what the job store keeps of a job and its tasks. Plain values.
//
// A job is what a caller submitted; it has one task for each image. A task is what a worker executes (StartJob of the
// control channel). Its attempt number counts its claims, and reports with an older number are refused.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "server/api/key_usage.h"
#include "server/image/image_format.h"
#include "server/jobs/task_state.h"

namespace tessera::server {

struct JobRequest;
enum class JobState : uint8_t;

inline constexpr size_t kMaxTenantBytes = 256;

// Identifies one claim of a task. Only the last one may report about the task.
struct TaskAttempt {
  uint64_t task = 0;
  int32_t attempt = 0;

  bool operator==(const TaskAttempt&) const = default;
};

// How an image was made; stored together with its file.
struct ImageOrigin {
  int32_t width = 0;
  int32_t height = 0;
  ImageFormat format = ImageFormat::kPng;
  std::string layout;  // layout in text form
  bool lossless = true;
  std::vector<std::string> warnings;  // sentences for the user
  KeyUsage usage;                     // added to the totals of the day together with the image, and not stored with it

  bool operator==(const ImageOrigin&) const = default;
};

struct StoredImage {
  ImageOrigin origin;
  std::string id;      // unguessable
  std::string file;    // name in the ResultStore
  uint64_t bytes = 0;  // size of the file
  std::string digest;  // SHA-256 of the file, 32 bytes
};

struct TaskRecord {
  uint64_t id = 0;    // never reused; never 0
  int32_t index = 0;  // within the job; the task's seed is the job's seed plus this
  TaskState state = TaskState::kQueued;
  int32_t attempt = 0;     // claims so far
  bool elsewhere = false;  // it runs, and another process has claimed it
  Blame blame;
  std::optional<absl::Time> started;  // time of the last claim
  std::optional<absl::Time> ended;
  absl::Status error;                // set for a failed or quarantined task; may be shown to the user
  std::optional<StoredImage> image;  // set for a done task
};

struct JobRecord {
  std::string id;  // in the form of record_ids.h
  std::string tenant;
  std::shared_ptr<const JobRequest> request;  // never null in a stored record
  std::string trace_parent;
  absl::Time created = absl::InfinitePast();
  std::optional<absl::Time> deadline;
  std::optional<absl::Duration> kept_until;  // set for an ended job, in running time (store_time.h)
  std::vector<TaskRecord> tasks;             // by index, never empty
};

// Returns running if any task runs, or if some tasks have ended while others are queued; queued if all are queued.
// Otherwise returns failed if any task failed or was quarantined, else cancelled if any was cancelled, else done.
JobState StateOf(absl::Span<const TaskState> tasks);
JobState StateOf(const JobRecord& job);

// Returns the total size of the files of the job's finished images.
int64_t ImageBytesOf(const JobRecord& job);

// Returns the error that a failed task stores; never OK.
absl::Status ReasonOf(const absl::Status& error);

// Returns the job's first error, or OK.
absl::Status ErrorOf(const JobRecord& job);

// A queued task with the fields that a scheduler needs.
struct QueuedTask {
  uint64_t id = 0;
  int32_t index = 0;
  std::string job;
  std::string tenant;
  Blame blame;
  absl::Time created = absl::InfinitePast();
  std::optional<absl::Time> deadline;
  std::string trace_parent;
  const JobRequest* request = nullptr;  // valid only during the call that passes this
};

// Returns one of the job's tasks; valid as long as the record lives.
QueuedTask QueuedTaskOf(const JobRecord& job, const TaskRecord& task);

}  // namespace tessera::server
