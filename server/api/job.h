// What a caller asks of the service and what it is told: jobs, their images, their events. Plain values without HTTP,
// protobuf or LibTorch.
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
#include "control/job_parameters.h"
#include "server/api/request_limits.h"
#include "server/image/image_file.h"

namespace tessera::server {

// What one API key may use; 0: no limit. Who queues jobs enforces the two about queued work; the edges the rate.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t queued_jobs = 0;           // accepted and not yet ended, at most
  double queued_device_seconds = 0;  // predicted, of the same jobs, at most

  bool operator==(const KeyLimits&) const = default;
};

// On whose behalf a call is made. Everything a caller makes belongs to its tenant and to nobody else.
struct Caller {
  std::string tenant;  // the name of the API key; "anonymous" where no keys are asked for
  KeyLimits limits;
  std::string request_id;    // for logs
  std::string trace_parent;  // W3C traceparent of the call; empty: none
};

struct OutputOptions {
  ImageFormat format = ImageFormat::kPng;
  // 1 to 100: quality of JPEG and lossy WebP. Absent: the encoder's default, which for WebP is lossless.
  std::optional<int32_t> quality;

  bool operator==(const OutputOptions&) const = default;
};

// The file of one image. `parameters` is what it carries of its making; empty: nothing.
absl::StatusOr<std::string> EncodeOutput(const control::Image& image, const OutputOptions& output,
                                         const std::string& parameters = "");

// A request that was validated against its model: nothing is left to be defaulted.
struct JobRequest {
  std::string model;                  // as the service lists it, never an alias
  control::JobParameters parameters;  // of the first image; the others differ by the seed, which counts up
  int32_t count = 1;
  OutputOptions output;
  int32_t partial_images = 0;  // previews wanted of each image, spread evenly over its steps
  int32_t priority = 0;        // kMinPriority … kMaxPriority, higher is sooner
  std::optional<absl::Duration>
      timeout;       // from acceptance to the end; a job that is later fails with DEADLINE_EXCEEDED
  std::string user;  // the caller's own label, kept and given back
};

// A caller's own name for one request. Within a tenant, a second submission under the same key is the first one if the
// digest is the same too, and ALREADY_EXISTS if it is not.
struct IdempotencyKey {
  std::string key;
  std::string digest;  // of what the caller sent, before anything was chosen for it
};

// The numbers are stored.
enum class JobState : uint8_t { kQueued, kRunning, kDone, kFailed, kCancelled };

inline bool IsEnded(JobState state) { return state >= JobState::kDone; }

// One image that is done and can be fetched until the job's retention ends.
struct FinishedImage {
  int32_t index = 0;  // within the job
  std::string id;     // unguessable; names it in download links
  uint64_t seed = 0;
  int32_t width = 0;
  int32_t height = 0;
  ImageFormat format = ImageFormat::kPng;
  uint64_t bytes = 0;
};

// A job as it stood at one moment.
struct Job {
  std::string id;  // unguessable
  JobRequest request;
  JobState state = JobState::kQueued;
  absl::Time created = absl::InfinitePast();
  std::optional<absl::Time> started;
  std::optional<absl::Time> ended;
  std::optional<absl::Time> expires;      // when its images and itself are forgotten
  std::optional<int64_t> queue_position;  // of a queued job; 0 is next
  std::optional<absl::Duration> expected_wait;
  int32_t steps_done = 0;             // over all images
  int32_t steps_total = 0;            // over all images
  std::vector<FinishedImage> images;  // by index
  std::string layout;                 // that the images were made on, once it runs
  bool lossless = true;               // whether that layout gives the serial image
  std::vector<std::string> warnings;  // sentences for the user
  absl::Status error;                 // of a failed job; its message is shown to the caller
};

// What can happen to a job that is watched. Preview and step numbers count from 0 and 1 respectively, within an image.
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
// The last event of a watch, too, where the server ends before the job, which goes on with the next server.
struct ReleasedEvent {
  absl::Status reason;
};
// After which of an image's steps its previews are made: rising, each in 1 … steps - 1, `partial_images` of them where
// there are that many such steps.
std::vector<int32_t> PreviewSteps(int32_t steps, int32_t partial_images);

// "queued", "running", "done", "failed", "cancelled".
std::string JobStateName(JobState state);

using JobEvent =
    std::variant<QueuedEvent, StartedEvent, StepEvent, PreviewEvent, ImageEvent, EndedEvent, ReleasedEvent>;

// Whether nothing follows it.
inline bool IsLast(const JobEvent& event) {
  return std::holds_alternative<EndedEvent>(event) || std::holds_alternative<ReleasedEvent>(event);
}

// What somebody who watches a job wants to hear.
enum class WatchedEvents {
  kAll,
  kResults,  // previews, images and the end, not how far it has got: steps are many
};

inline bool IsAmong(WatchedEvents events, const JobEvent& event) {
  return events == WatchedEvents::kAll ||
         !(std::holds_alternative<QueuedEvent>(event) || std::holds_alternative<StartedEvent>(event) ||
           std::holds_alternative<StepEvent>(event));
}

}  // namespace tessera::server
