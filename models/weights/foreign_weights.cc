#include "models/weights/foreign_weights.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/files/file.h"
#include "base/files/git_lfs.h"
#include "base/json/json.h"
#include "control/model/pipelines.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

constexpr char kGgufMagic[] = "GGUF";

// Quotes the path for a shell; the word FILE if it does not fit into a line.
std::string ShellWord(const fs::path& path) {
  std::string text = path.string();
  const auto is_plain = [](unsigned char c) {
    return absl::ascii_isalnum(c) || std::strchr("_./+:=@%,-", c) != nullptr;
  };
  if (std::any_of(text.begin(), text.end(), [](unsigned char c) { return absl::ascii_iscntrl(c); })) return "FILE";
  if (!text.empty() && text[0] != '-' && std::all_of(text.begin(), text.end(), is_plain)) return text;
  return absl::StrCat("'", absl::StrReplaceAll(text, {{"'", "'\\''"}}), "'");
}

// Returns "python3 scripts/convert-model.py …": a shell command that converts `input` into a new folder.
std::string ConvertCommand(const std::string& input, const std::string& output, bool needs_base) {
  return absl::StrCat("python3 scripts/convert-model.py ", input, " ", output, needs_base ? " --base MODEL" : "");
}

std::string FirstBytes(const std::string& path) {
  const absl::StatusOr<base::ReadOnlyFile> file = base::ReadOnlyFile::Open(path, path);
  if (!file.ok()) return "";
  std::string bytes(std::min<uint64_t>(file->size(), base::kGitLfsBeginning.size()), '\0');
  return file->Read(0, std::as_writable_bytes(std::span(bytes))).ok() ? bytes : "";
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

bool IsLora(std::span<const StoredTensor> tensors) {
  return AnyName(tensors, {".lora_A.", ".lora_B.", ".lora_up.", ".lora_down.", "lora.up.", "lora.down.", ".lora.A",
                           "lora_unet_", "lora_transformer_", ".lokr_w1", ".hada_w1"});
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

// Returns the family of a transformer's single file for use in a sentence; empty if its tensors do not reveal it.
std::string FamilyOf(std::span<const StoredTensor> tensors) {
  if (AnyName(tensors, {"joint_blocks."})) return " of Stable Diffusion 3";
  return AnyName(tensors, {"double_blocks."}) ? " of FLUX" : "";
}

// Returns the family of a single file that cannot be run after a conversion either; empty if it may be.
std::string UnsupportedFamilyOf(std::span<const StoredTensor> tensors) {
  if (!AnyName(tensors, {"diffusion_model.input_blocks."})) return "";
  return AnyName(tensors, {"conditioner.embedders.", ".label_emb."}) ? "Stable Diffusion XL"
                                                                     : "Stable Diffusion 1 and 2";
}

}  // namespace

bool IsCheckpointName(std::string_view file) {
  const fs::path path(file);
  for (const char* extension : {".safetensors", ".sft", ".ckpt", ".pt", ".pth", ".bin", ".gguf"}) {
    if (path.extension() == extension) return true;
  }
  return false;
}

absl::Status SingleFileError(const std::string& path) {
  const std::string begins = FirstBytes(path), shown = base::Quote(path, std::string::npos);
  if (base::IsGitLfsPointer(begins)) return base::GitLfsPointerError(shown);
  const std::string command = ConvertCommand(ShellWord(path), ShellWord(fs::path(path).replace_extension()), true);
  const auto say = [&](const std::string& what) {
    return absl::FailedPreconditionError(
        absl::StrCat(shown, " is ", what, ": ", command, ", where MODEL is the diffusers folder of the base model"));
  };
  if (begins.starts_with(kGgufMagic) || fs::path(path).extension() == ".gguf") {
    return say("a GGUF file with quantized weights, and a model is a folder; convert it with");
  }
  const absl::StatusOr<SafetensorsFile> checkpoint = SafetensorsFile::Open(path, shown);
  const std::span<const StoredTensor> tensors =
      checkpoint.ok() ? std::span<const StoredTensor>(checkpoint->tensors()) : std::span<const StoredTensor>();
  if (IsLora(tensors)) return say("a LoRA, not a model; merge it into its base model with");
  if (const std::string family = UnsupportedFamilyOf(tensors); !family.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(shown, ": ", control::FamilyProblem(family)));
  }
  const std::string quantization = QuantizationOf(tensors);
  return say(absl::StrCat("a single-file checkpoint", FamilyOf(tensors),
                          quantization.empty() ? "" : absl::StrCat(" with weights in ", quantization),
                          ", and a model is a folder; convert it with"));
}

absl::Status CheckNotQuantized(std::span<const StoredTensor> tensors, const std::string& name) {
  const std::string quantization = QuantizationOf(tensors);
  if (quantization.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      name, " has weights in ", quantization,
      "; valid types are F64, F32, F16 and BF16; convert MODEL with: ", ConvertCommand("MODEL", "NEW_FOLDER", false)));
}

absl::Status PickledWeightsError(const std::string& name, const std::string& files) {
  return absl::FailedPreconditionError(
      absl::StrCat(name, " has weights only as PyTorch pickles (", files,
                   "), which can run code when they are read; convert MODEL to safetensors with: ",
                   ConvertCommand("MODEL", "NEW_FOLDER", false)));
}

absl::Status GgufWeightsError(const std::string& name, const std::string& files) {
  return absl::FailedPreconditionError(absl::StrCat(
      name, " has weights only in GGUF (", files, "), whose weights are quantized; convert them to safetensors with: ",
      ConvertCommand(absl::StrCat("MODEL/", name, "/FILE.gguf"), "NEW_FOLDER", true)));
}

}  // namespace tessera::models
