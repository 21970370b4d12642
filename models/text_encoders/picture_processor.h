// PictureProcessor turns pictures into the patches that an encoder reads: the image processor of Qwen2-VL (Wang et al.,
// 2024), as transformers computes it with torchvision.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "control/pictures/vision_processor.h"
#include "models/text_encoders/prompt_pictures.h"
#include "models/text_encoders/text_encoder.h"

namespace tessera::control {
struct Frames;
}

namespace tessera::models {

struct PictureProcessor {
  control::ProcessorLimits limits;
  int64_t patch = 14, frames = 2;                   // as in PictureReading
  std::array<double, 3> mean = {}, deviation = {};  // of each channel, of values from 0 to 1

  // Returns the grid of a picture of this size. InvalidArgument if one side is too long for the other.
  absl::StatusOr<PatchGrid> GridOf(const control::PictureSize& picture) const;
  // Resizes an RGB picture with 8 bits to the size of its grid.
  absl::StatusOr<control::Frames> Resized(const control::Frames& picture) const;
  // Returns the patches of a picture that has the size of a grid, normalised in fp32, on the host.
  EncoderPicture PatchesOf(const control::Frames& resized) const;
};

// Reads a processor's folder: "image_processor" of processor_config.json, as transformers 5 writes it, or
// preprocessor_config.json. `name` begins messages. Returns InvalidArgument for a missing file and for an invalid
// field, with its name, its value and the valid values.
absl::StatusOr<PictureProcessor> ReadPictureProcessor(const std::string& folder, const std::string& name,
                                                      const PictureReading& reading);

// The pictures of a prompt: RGB with 8 bits, as the processor gets them.
struct PromptPictures {
  std::vector<control::Frames> pictures;
  std::string key;  // differs between pictures that differ
};

// Returns null for no pictures.
SharedPromptPictures MakePromptPictures(std::vector<control::Frames> pictures);

// That many small pictures, for what depends only on their number.
SharedPromptPictures MadeUpPromptPictures(int64_t count);

}  // namespace tessera::models
