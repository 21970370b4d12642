// StepWorkers is the interface through which callers drive the jobs of one group step by step. WorkerGroup implements
// it; tests use a fake.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "control/protocol/worker_client.h"

namespace tessera::control {
struct JobParameters;
}

namespace tessera::server {

class StepWorkers {
 public:
  virtual ~StepWorkers() = default;

  // These methods are documented in WorkerClient.
  virtual absl::StatusOr<uint64_t> SendStartJob(uint64_t job, const control::JobParameters& parameters) = 0;
  virtual absl::StatusOr<control::JobStarted> WaitForStart(uint64_t sequence) = 0;
  virtual absl::StatusOr<int32_t> EncodePrompts(absl::Span<const control::JobParameters> jobs) = 0;
  virtual absl::StatusOr<uint64_t> SendSteps(absl::Span<const uint64_t> jobs, int32_t count) = 0;
  virtual absl::StatusOr<std::vector<control::Stepped>> WaitForSteps(uint64_t sequence) = 0;
  virtual absl::StatusOr<uint64_t> SendDecode(uint64_t job) = 0;
  virtual absl::StatusOr<control::DecodedPicture> WaitForDecode(uint64_t sequence,
                                                                const control::JobStarted& started) = 0;
  virtual uint64_t WaitForAny(absl::Span<const uint64_t> sequences) = 0;
  virtual absl::StatusOr<uint64_t> SendEndJob(uint64_t job) = 0;
  virtual absl::Status WaitForEnd(uint64_t sequence) = 0;

  absl::StatusOr<control::JobStarted> StartJob(uint64_t job, const control::JobParameters& parameters) {
    const absl::StatusOr<uint64_t> sequence = SendStartJob(job, parameters);
    if (!sequence.ok()) return sequence.status();
    return WaitForStart(*sequence);
  }
  absl::Status EndJob(uint64_t job) {
    const absl::StatusOr<uint64_t> sequence = SendEndJob(job);
    return sequence.ok() ? WaitForEnd(*sequence) : sequence.status();
  }

  // SendSteps and WaitForSteps for a single step.
  absl::StatusOr<uint64_t> SendStep(absl::Span<const uint64_t> jobs) { return SendSteps(jobs, 1); }
  absl::StatusOr<control::Stepped> WaitForStep(uint64_t sequence) {
    const absl::StatusOr<std::vector<control::Stepped>> steps = WaitForSteps(sequence);
    if (!steps.ok()) return steps.status();
    return steps->back();
  }

  absl::StatusOr<control::DecodedPicture> Decode(uint64_t job, const control::JobStarted& started) {
    const absl::StatusOr<uint64_t> sequence = SendDecode(job);
    if (!sequence.ok()) return sequence.status();
    return WaitForDecode(*sequence, started);
  }

  // The reason why the workers have ended permanently; OK while they run.
  virtual absl::Status health() = 0;
};

}  // namespace tessera::server
