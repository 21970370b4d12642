// What a server says of a job, checked before it is believed. Errors are INTERNAL: the other end is no Tessera server.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera {

struct JobAnswer {
  std::string id;
  std::string status;  // queued, running, done, failed, cancelled
  std::string model;
  std::string size;
  int64_t count = 0;  // images
  uint64_t seed = 0;
  int32_t steps = 0;  // of each image
  int64_t steps_done = 0, steps_total = 0;
  int64_t created = 0;  // seconds since 1970
  bool lossless = true;
  std::vector<std::string> warnings;
  std::string error;  // of a job that failed
};
absl::StatusOr<JobAnswer> ReadJobAnswer(const std::string& json);
absl::StatusOr<std::vector<JobAnswer>> ReadJobListAnswer(const std::string& json);

struct ImageAnswer {
  std::string id;
  int64_t index = 0;
  uint64_t seed = 0;
};
absl::StatusOr<ImageAnswer> ReadImageAnswer(const std::string& json);

struct StepAnswer {
  int64_t image = 0;
  int32_t step = 0, steps = 0;
};
absl::StatusOr<StepAnswer> ReadStepAnswer(const std::string& json);

struct PreviewAnswer {
  int64_t image = 0;
  std::string file;
};
absl::StatusOr<PreviewAnswer> ReadPreviewAnswer(const std::string& json);

std::optional<int64_t> QueuePlace(const std::string& json);  // nothing where the event says none

}  // namespace tessera
