// What a model is made of, to the byte: unlike ModelFolder::Digest, which knows its shapes alone. Free of LibTorch.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "control/model_description.h"
#include "models/weights/model_folder.h"

namespace tessera::runtime {

// Digests, 64 hexadecimal digits each, of configurations and weights.
struct ModelContents {
  std::string model;        // all of it
  std::string autoencoder;  // what decides the latents of a picture
  std::string text;         // what decides how a caption is read: text encoders and tokenizers
};

// Reads every file of weights from end to end, each component on a thread of its own, and calls `progress` every few
// megabytes on these. `description` is of that folder. Errors name the file.
absl::StatusOr<ModelContents> DigestContents(const models::ModelFolder& folder,
                                             const control::ModelDescription& description,
                                             const std::function<void()>& progress);

}  // namespace tessera::runtime
