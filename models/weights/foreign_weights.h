// Recognises weights that cannot be read directly: checkpoint files in place of a model's folder, pickles, and
// quantized weights. They are recognised by their bytes, tensors or names. The error says in one sentence what the file
// is and gives a command that helps, usually scripts/convert-model.py.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

// Whether the name has an extension of checkpoints: .safetensors, .ckpt, .gguf, …
bool IsCheckpointName(std::string_view file);

// Returns FailedPrecondition about the file at `path`, which was given in place of a model's folder.
absl::Status SingleFileError(const std::string& path);

// Returns FailedPrecondition if the tensors of a component are quantized; `name` is the component's. OK for all others,
// including tensors that are not weights at all.
absl::Status CheckNotQuantized(std::span<const StoredTensor> tensors, const std::string& name);

// Return errors for a component whose only weights are pickles or GGUF files; `files` names them.
absl::Status PickledWeightsError(const std::string& name, const std::string& files);
absl::Status GgufWeightsError(const std::string& name, const std::string& files);

}  // namespace tessera::models
