// Computes digests of every byte of a model, unlike ModelFolder::Digest, which covers only the shapes of its weights.
// LibTorch-free.
#pragma once

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "models/weights/model_folder.h"

namespace tessera::control {
struct ModelDescription;
}

namespace tessera::runtime {

// Digests of configurations and weights, 64 hexadecimal digits each.
struct ModelContents {
  std::string model;        // of the whole model
  std::string autoencoder;  // of everything that determines the latents of a picture
  std::string text;         // of everything that determines how a caption is read: text encoders and tokenizers
};

// Reads every weight file completely, each component on a separate thread, and calls `progress` on these threads every
// few megabytes; an error that it returns ends the reading. `description` is of that folder. Errors name the file.
absl::StatusOr<ModelContents> DigestContents(const models::ModelFolder& folder,
                                             const control::ModelDescription& description,
                                             const std::function<absl::Status()>& progress);

}  // namespace tessera::runtime
