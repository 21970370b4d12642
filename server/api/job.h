// Defines the service's requests and results: jobs, their images and their events. Plain values without HTTP, protobuf
// or LibTorch.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/api/job_event.h"
#include "server/api/request_limits.h"
#include "server/image/image_format.h"

namespace tessera::server {

struct JobRequest;  // server/api/job_request.h

// The numeric values are stored.
enum class JobState : uint8_t { kQueued, kRunning, kDone, kFailed, kCancelled };

inline bool IsEnded(JobState state) { return state >= JobState::kDone; }

// A finished image, which can be fetched until the job's retention ends.
struct FinishedImage {
  int32_t index = 0;  // within the job
  std::string id;     // unguessable; names it in download links
  uint64_t seed = 0;
  int32_t width = 0;
  int32_t height = 0;
  ImageFormat format = ImageFormat::kPng;
  uint64_t bytes = 0;
};

// The state of a job at one moment.
struct Job {
  std::string id;                             // unguessable
  std::shared_ptr<const JobRequest> request;  // never null
  JobState state = JobState::kQueued;
  absl::Time created = absl::InfinitePast();
  std::optional<absl::Time> started;
  std::optional<absl::Time> ended;
  std::optional<absl::Time> expires;      // when the job and its images are deleted
  std::optional<int64_t> queue_position;  // of a queued job; 0 is next
  std::optional<absl::Duration> expected_wait;
  int32_t steps_done = 0;             // over all images
  int32_t steps_total = 0;            // over all images
  std::vector<FinishedImage> images;  // by index
  std::string layout;                 // the layout on which the images are made; empty before the job runs
  bool lossless = true;               // whether that layout produces exactly the serial image
  std::vector<std::string> warnings;  // sentences for the user
  absl::Status error;                 // why a job failed; the message is shown to the caller
};

struct Submitted {
  Job job;
  bool existed = false;  // true if an earlier submission used the same idempotency key
};

struct JobPage {
  std::vector<Job> jobs;  // newest first
  std::string next;       // ListOptions::after for the next page; empty on the last page
};

struct ListOptions {
  int32_t limit = 20;  // 1 … kMaxListLimit
  std::string after;   // `next` of the previous page; an unknown value is NOT_FOUND
  std::optional<JobState> state;
};

inline constexpr int32_t kMaxListLimit = 100;

// Events of a watched job. Previews are numbered from 0 and steps from 1, per image.
struct QueuedEvent {
  int64_t position = 0;
  std::optional<absl::Duration> expected_wait;
};
struct StartedEvent {};
struct StepEvent {
  int32_t image = 0;
  int32_t step = 0;
  int32_t steps = 0;
};
struct PreviewEvent {
  int32_t image = 0;
  int32_t preview = 0;
  int32_t width = 0;
  int32_t height = 0;
  ImageFormat format = ImageFormat::kPng;
  std::shared_ptr<const std::string> bytes;
};
struct ImageEvent {
  FinishedImage image;
};
// The last event of a watch: done, failed or cancelled.
struct EndedEvent {
  Job job;
};
// The last event of a watch if the server stops before the job ends; the next server continues the job.
struct ReleasedEvent {
  absl::Status reason;
};
// The steps of an image after which previews are made: rising, each in 1 … steps - 1. `partial_images` of them, or
// fewer if there are not that many such steps.
std::vector<int32_t> PreviewSteps(int32_t steps, int32_t partial_images);

// "queued", "running", "done", "failed", "cancelled".
std::string JobStateName(JobState state);

// Whether it is the last event of a watch.
inline bool IsLast(const JobEvent& event) {
  return std::holds_alternative<EndedEvent>(event) || std::holds_alternative<ReleasedEvent>(event);
}

inline bool IsAmong(WatchedEvents events, const JobEvent& event) {
  return events == WatchedEvents::kAll ||
         !(std::holds_alternative<QueuedEvent>(event) || std::holds_alternative<StartedEvent>(event) ||
           std::holds_alternative<StepEvent>(event));
}

}  // namespace tessera::server
