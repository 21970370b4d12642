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
#include "server/api/field_checks.h"
#include "server/api/request_limits.h"

namespace tessera::control {
enum class Dtype;
struct JobParameters;
struct ModelDescription;
struct PictureUse;
}  // namespace tessera::control

namespace tessera::server {

struct ImageRequest;

// Returns the parameters of the first image. Parameters without effect are kept (server/api/unused_parameters.h removes
// them). `names` selects the field names that errors use.
absl::StatusOr<control::JobParameters> Validate(const ImageRequest& request, const control::ModelDescription& model,
                                                FieldNames names = FieldNames::kCommandLine);

// Gives a request without a width and height the default size for its pictures (control::SizeOfPictures); of a request
// with one of them, a model that looks at pictures takes the other one from that size. Has no effect without pictures,
// and if the size of the first is not known (0).
void SetSizeLike(absl::Span<const control::PictureUse> pictures, bool has_mask, const control::ModelDescription& model,
                 ImageRequest& request);

// Returns a warning for the user if the image is far larger than the sizes for which the model works well.
std::vector<std::string> SizeWarnings(const control::JobParameters& job, const control::ModelDescription& model);

// Returns the dtype of this name for a model on `device`; without a name, fp32 on the cpu and bf16 on cuda.
// INVALID_ARGUMENT if the name or the device is not valid.
absl::StatusOr<control::Dtype> ServedDtype(const std::string& name, const std::string& device);

}  // namespace tessera::server
