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
#include "control/parameters/job_parameters.h"
#include "server/api/request_limits.h"
#include "server/image/image_file.h"

namespace tessera::server {

// Limits of one API key; 0: no limit. The job queue enforces the two limits on queued work; HTTP and gRPC enforce the
// rate.
struct KeyLimits {
  int64_t requests_per_minute = 0;
  int64_t queued_jobs = 0;           // maximum number of accepted jobs that have not ended
  double queued_device_seconds = 0;  // maximum predicted time of the same jobs

  bool operator==(const KeyLimits&) const = default;
};

// The caller of the service. Everything that it creates belongs exclusively to its tenant.
struct Caller {
  std::string tenant;  // the name of the API key; "anonymous" without keys
  KeyLimits limits;
  std::string request_id;    // for logs
  std::string trace_parent;  // W3C traceparent of the call; empty if none
};

struct OutputOptions {
  ImageFormat format = ImageFormat::kPng;
  // Quality of JPEG and lossy WebP, 1 to 100. Absent: the encoder's default, which is lossless for WebP.
  std::optional<int32_t> quality;

  bool operator==(const OutputOptions&) const = default;
};

// Encodes the file of one image. `parameters` is the generation metadata to embed; empty: none.
absl::StatusOr<std::string> EncodeOutput(const control::Frames& image, const OutputOptions& output,
                                         const std::string& parameters = "");

// A request that was validated against its model; every default is filled in.
struct JobRequest {
  std::string model;                  // the id, never an alias
  control::JobParameters parameters;  // parameters of the first image; the seeds of the others count up from it
  int32_t count = 1;
  OutputOptions output;
  int32_t partial_images = 0;  // number of previews per image, spread evenly over its steps
  int32_t priority = 0;        // kMinPriority … kMaxPriority, higher is sooner
  std::optional<absl::Duration>
      timeout;       // from acceptance to the end; a job that takes longer fails with DEADLINE_EXCEEDED
  std::string user;  // the caller's label, stored and returned with the job
};

// A caller's key for one request. Within a tenant, a second submission with the same key returns the first one if the
// digest is also equal, and ALREADY_EXISTS if it is not.
struct IdempotencyKey {
  std::string key;
  std::string digest;  // digest of the request as sent, before defaults were filled in
};

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
  std::string id;  // unguessable
  JobRequest request;
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

using JobEvent =
    std::variant<QueuedEvent, StartedEvent, StepEvent, PreviewEvent, ImageEvent, EndedEvent, ReleasedEvent>;

// Whether it is the last event of a watch.
inline bool IsLast(const JobEvent& event) {
  return std::holds_alternative<EndedEvent>(event) || std::holds_alternative<ReleasedEvent>(event);
}

// Which events a watch delivers.
enum class WatchedEvents {
  kAll,
  kResults,  // previews, images and the end, without the frequent progress events
};

inline bool IsAmong(WatchedEvents events, const JobEvent& event) {
  return events == WatchedEvents::kAll ||
         !(std::holds_alternative<QueuedEvent>(event) || std::holds_alternative<StartedEvent>(event) ||
           std::holds_alternative<StepEvent>(event));
}

}  // namespace tessera::server
