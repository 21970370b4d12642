// Reads the pictures of a job from their stored files and brings them to the size of its image.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "control/parameters/picture_use.h"
#include "control/pictures/picture_frames.h"
#include "runtime/denoising/picture_inputs.h"

namespace tessera::control {
struct PictureRules;
}

namespace tessera::runtime {

// Returns the values of a binary mask [1, 1, height, width], in fp32.
at::Tensor MaskValues(const control::Frames& binary);

// The standard deviation, in pixels of the image, of the Gaussian blur that feathers a mask.
inline constexpr float kMaskFeather = 4;
// Pixels that are farther than this from the mask, in rows or in columns, do not change.
inline constexpr int kMaskReach = 12;

// The pixels that an image with a mask keeps of its picture.
struct KeptPixels {
  control::Frames picture;  // RGB, of the image's size
  control::Frames mask;  // gray, of that size: 0 where the picture is kept, 255 where the image is, and values between

  // Returns the picture where it is kept and `image`, RGB and of the same size, where it is not.
  absl::StatusOr<control::Frames> Over(const control::Frames& image) const;
};

struct JobPictures {
  PictureInputs inputs;
  std::vector<control::Frames> of_prompt;  // as the text encoder's processor gets them; empty if the prompt holds none
  std::optional<KeptPixels> kept;          // if the job has a mask
};

// Returns a job's pictures and mask in host memory, in fp32, for an image that is generated at height x width pixels:
// stretched to it with Pillow's Lanczos filter as the reference pipelines do, or, if the model looks at them, at the
// sizes that it reads (control/pictures/reference_size.h). DATA_LOSS if a file is missing, is not the one of its
// digest, or is no such picture.
absl::StatusOr<JobPictures> ReadPictures(std::span<const control::PictureUse> images,
                                         std::span<const control::PictureUse> mask, const control::PictureRules& rules,
                                         int64_t height, int64_t width);

// Returns the pictures that the prompt of such a job holds; empty if it holds none. Errors as above.
absl::StatusOr<std::vector<control::Frames>> ReadPromptPictures(std::span<const control::PictureUse> images,
                                                                const control::PictureRules& rules);

}  // namespace tessera::runtime
