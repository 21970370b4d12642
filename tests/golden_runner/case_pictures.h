// Reads the pictures of a case and prepares them with the functions that the product uses.
#pragma once

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "control/pictures/kontext_size.h"
#include "runtime/denoising/picture_inputs.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::golden {

// Returns the size of the case's image: the one asked for, or that of the picture which it begins from.
absl::StatusOr<control::PictureSize> SizeOf(const Case& test_case);

// Returns the case's pictures and mask, in fp32 in host memory, and its first step.
absl::StatusOr<runtime::PictureInputs> PreparedPictures(const Case& test_case);

// Returns the image [1, h, w, 3] as the pipeline returns it: if only the region around the mask was painted, under the
// original picture, otherwise as it is.
absl::StatusOr<at::Tensor> FinishedPixels(const Case& test_case, const at::Tensor& pixels);

}  // namespace tessera::golden
