// Validates requests for images, whether they come from the command line, HTTP or gRPC.
//
// Every error names the field, its value, what is valid, and the nearest valid choice if there is one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "control/job_parameters.h"
#include "control/load_parameters.h"
#include "control/model_description.h"
#include "server/api/field_checks.h"
#include "server/api/request_fields.h"

namespace tessera::server {

inline constexpr size_t kMaxPromptBytes = control::kPrompt.most_bytes;
inline constexpr int64_t kMaxPromptCacheMib = 1048576;
inline constexpr int64_t kMaxThreads = 1024;

// Returns the parameters of the first image. Parameters without effect are kept (server/api/unused_parameters.h removes
// them). `names` selects the field names that errors use.
absl::StatusOr<control::JobParameters> Validate(const GenerationRequest& request,
                                                const control::ModelDescription& model,
                                                FieldNames names = FieldNames::kCommandLine);

// Returns a warning for the user if the image is far larger than the sizes for which the model works well.
std::vector<std::string> SizeWarnings(const control::JobParameters& job, const control::ModelDescription& model);

// The devices, precision and memory options with which a model runs.
struct PlacementRequest {
  std::string dtype = "fp32";  // empty: fp32 on the cpu, bf16 on cuda
  std::string device = "cpu";
  int64_t threads = 0;  // 0: all processors of the machine
  std::string text_encoders = "rank0";
  std::string autoencoder = "rank0";
  int64_t prompt_cache_mib = 256;  // 0: no cache
  bool stream_blocks = false;
  std::string offload = "auto";
};

absl::StatusOr<control::LoadParameters> Validate(const PlacementRequest& request, const std::string& model);

}  // namespace tessera::server
