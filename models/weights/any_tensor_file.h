// Opens a file of tensors of either container.
#pragma once

#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "models/weights/gguf.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

using AnyTensorFile = std::variant<SafetensorsFile, GgufFile>;

// Opens a GGUF file if it begins as one, else a safetensors file. Errors use `name` in place of the path.
absl::StatusOr<AnyTensorFile> OpenTensorFile(const std::string& path, const std::string& name);

// What both have in common.
inline const TensorFile& Common(const AnyTensorFile& file) {
  return std::visit([](const TensorFile& each) -> const TensorFile& { return each; }, file);
}

}  // namespace tessera::models
