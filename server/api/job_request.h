// JobRequest is what a job is to make: a request that was validated.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "control/parameters/job_parameters.h"
#include "server/image/image_format.h"

namespace tessera::control {
struct Frames;
}

namespace tessera::server {

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

}  // namespace tessera::server
