#include "models/weights/foreign_weights.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tessera::models {
namespace {

// Returns "python3 scripts/convert-model.py …": a shell command that converts `input` into a new folder.
std::string ConvertCommand(const std::string& input, const std::string& output, bool needs_base) {
  return absl::StrCat("python3 scripts/convert-model.py ", input, " ", output, needs_base ? " --base MODEL" : "");
}

bool AnyName(std::span<const StoredTensor> tensors, std::initializer_list<std::string_view> parts) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) {
    return std::any_of(parts.begin(), parts.end(),
                       [&](std::string_view part) { return tensor.name.find(part) != std::string::npos; });
  });
}

bool AnyType(std::span<const StoredTensor> tensors, std::initializer_list<StoredType> types) {
  return std::any_of(tensors.begin(), tensors.end(), [&](const StoredTensor& tensor) {
    return std::find(types.begin(), types.end(), tensor.type) != types.end();
  });
}

// Returns how the weights are quantized; empty if they are not.
std::string QuantizationOf(std::span<const StoredTensor> tensors) {
  if (AnyName(tensors, {".quant_state.bitsandbytes__nf4"})) return "nf4 (bitsandbytes)";
  if (AnyName(tensors, {".quant_state.bitsandbytes__fp4"})) return "fp4 (bitsandbytes)";
  if (AnyType(tensors, {StoredType::kI8}) && AnyName(tensors, {".SCB"})) return "int8 (bitsandbytes)";
  if (AnyType(tensors, {StoredType::kF8E4M3, StoredType::kF8E5M2})) {
    return AnyName(tensors, {"scale_weight", "weight_scale", "scaled_fp8"}) ? "fp8 with scales" : "fp8";
  }
  return AnyType(tensors, {StoredType::kI8}) ? "int8" : "";
}

}  // namespace

absl::Status CheckNotQuantized(std::span<const StoredTensor> tensors, const std::string& name) {
  const std::string quantization = QuantizationOf(tensors);
  if (quantization.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      name, " has weights in ", quantization,
      "; valid types are F64, F32, F16 and BF16; convert MODEL with: ", ConvertCommand("MODEL", "NEW_FOLDER", false)));
}

absl::Status GgufWeightsError(const std::string& name, const std::string& files) {
  return absl::FailedPreconditionError(absl::StrCat(
      name, " has weights only in GGUF (", files, "), whose weights are quantized; convert them to safetensors with: ",
      ConvertCommand(absl::StrCat("MODEL/", name, "/FILE.gguf"), "NEW_FOLDER", true)));
}

}  // namespace tessera::models
