// Recognises weights of folders that cannot be read directly, because they are quantized. The error says in one
// sentence what they are and gives a command that helps.
#pragma once

#include <span>
#include <string>

#include "absl/status/status.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

// Returns FailedPrecondition if the tensors of a component are quantized; `name` is the component's. OK for all others,
// including tensors that are not weights at all.
absl::Status CheckNotQuantized(std::span<const StoredTensor> tensors, const std::string& name);

// Returns the error for a component whose only weights are GGUF files; `files` names them.
absl::Status GgufWeightsError(const std::string& name, const std::string& files);

}  // namespace tessera::models
