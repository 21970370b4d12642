// Reads the pictures of a case and prepares them with the functions that the product uses.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "control/pictures/picture.h"
#include "runtime/denoising/picture_inputs.h"
#include "tests/golden_runner/golden_case.h"

namespace tessera::control {
struct Frames;
}

namespace tessera::golden {

// Returns the picture of a file of the case's folder.
absl::StatusOr<control::Frames> PictureAt(const Case& test_case, const std::string& file);

// Returns the pictures of the case's argument "images".
absl::StatusOr<std::vector<control::Frames>> ListedPictures(const Case& test_case);

// Compares the bytes of a picture with the recorded tensor of that name, or with its digest among the case's "hashes".
// Does nothing if neither is recorded.
void ComparePicture(const Case& test_case, const Tensors& gold, const std::string& name, const control::Frames& picture,
                    Report& report);

// The pictures of a case of Qwen-Image-Edit or Edit-Plus, for its areas.
struct EditPictures {
  std::vector<control::Frames> of_model;   // as the autoencoder gets them
  std::vector<control::Frames> of_prompt;  // as the text encoder's processor gets them
};
absl::StatusOr<EditPictures> ReadEditPictures(const Case& test_case);

// Returns the size of the case's image: the one asked for, or that of the picture which it begins from.
absl::StatusOr<control::PictureSize> SizeOf(const Case& test_case);

// Returns the case's pictures and mask, in fp32 in host memory, and its first step.
absl::StatusOr<runtime::PictureInputs> PreparedPictures(const Case& test_case);

// Returns the image [1, h, w, 3] as the pipeline returns it: if only the region around the mask was painted, under the
// original picture, otherwise as it is.
absl::StatusOr<at::Tensor> FinishedPixels(const Case& test_case, const at::Tensor& pixels);

}  // namespace tessera::golden
