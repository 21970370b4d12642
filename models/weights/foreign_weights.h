// Weights that cannot be read as they are: checkpoint files in place of a model's folder, pickles, quantized weights.
// Each is recognised by its bytes, its tensors or its name, and the error says in one sentence what it is, with a
// command that helps. scripts/convert-model.py is behind most of them.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

// Whether the name's extension is one that checkpoints have: .safetensors, .ckpt, .gguf, …
bool IsCheckpointName(std::string_view file);

// FailedPrecondition about the file at `path`, which stands where a model's folder should.
absl::Status SingleFileError(const std::string& path);

// FailedPrecondition where the tensors of a component are quantized; `name` is the component's. OK for all others, also
// for those that are no weights at all.
absl::Status CheckNotQuantized(std::span<const StoredTensor> tensors, const std::string& name);

// Of a component whose only weights are pickles, or GGUF files; `files` names them.
absl::Status PickledWeightsError(const std::string& name, const std::string& files);
absl::Status GgufWeightsError(const std::string& name, const std::string& files);

}  // namespace tessera::models
