// FileKind states what a file of weights is: which parts of which family it holds, under whose names, and how its
// values are stored. It is read from the beginning of the file and from its header alone. LibTorch-free.
//
// Errors say in one sentence what the file is, and give a command that helps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/keymaps/key_map.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

enum class FileContainer { kSafetensors, kGguf };

enum class PartRole { kTransformer, kAutoencoder, kTextEncoder };

// One component in a file.
struct FilePart {
  PartRole role = PartRole::kTransformer;
  std::string class_name;  // of diffusers or transformers, for example "FluxTransformer2DModel"
  std::string family;      // for people: "FLUX.1", "T5"
  std::string prefix;      // before its names in the file: "model.diffusion_model."
  NameForm form = NameForm::kOriginal;
  size_t tensors = 0;
  uint64_t bytes = 0;
  std::map<std::string, size_t> stored = {};  // number of its tensors by stored type: "BF16", "Q4_K"
};

// What the file's header says, in the form of every container.
struct FileHeader {
  FileContainer container = FileContainer::kSafetensors;
  std::span<const StoredTensor> tensors;
  std::map<std::string, std::string> metadata;  // values that are numbers are in decimal
  std::map<std::string, std::string> markers;   // the JSON texts of ComfyUI's "comfy_quant" tensors, by name
};

struct FileKind {
  FileContainer container = FileContainer::kSafetensors;
  std::string architecture = {};  // of GGUF: general.architecture; empty: not stated
  int64_t splits = 1;             // number of files that this one is a part of
  std::vector<FilePart> parts = {};
  std::string quantization = {};          // for people: "fp8 with scales"; empty if the weights are plain numbers
  std::string unsupported = {};           // a way of storing weights that is not read: "nvfp4"; empty if there is none
  std::string adapter = {};               // "LoRA"; empty for weights
  std::string foreign_family = {};        // a family that Tessera does not run
  std::string duplicate = {};             // a name that the file has with and without its prefix
  std::string mixed = {};                 // a tensor under diffusers' names in a file that otherwise has its authors'
  std::vector<std::string> unknown = {};  // names that belong to no part
};

// Never fails: a file of which nothing is known has no parts.
FileKind KindOf(const FileHeader& header);

// Reads the header. Errors name the file as the user gave it: NotFound; FailedPrecondition for a git-lfs pointer, a web
// page or a pickle; InvalidArgument for a broken file.
absl::StatusOr<FileKind> ReadFileKind(const std::string& path);

// Shapes of tensors by name, both without the prefix of their component.
using TensorShapes = std::map<std::string, std::vector<int64_t>, std::less<>>;

// Returns the shapes of a part's tensors.
absl::StatusOr<TensorShapes> ReadShapes(const std::string& path, const FilePart& part);

// Whether two classes have the same weights: a CLIP with and without its projection, Qwen3 with and without its head.
bool IsSameWeights(std::string_view a, std::string_view b);

// Whether the part can be a component of that class.
bool IsPartOfClass(const FilePart& part, std::string_view class_name);

// Whether the name has an extension of weights: .safetensors, .ckpt, .gguf, …
bool IsCheckpointName(std::string_view file);

// Returns the part of the file that is the model's component of that name and class. FailedPrecondition or
// InvalidArgument if there is none or the file cannot be used; `path` is the file.
absl::StatusOr<FilePart> PartFor(const FileKind& kind, const std::string& path, const std::string& component,
                                 const std::string& class_name);

// Returns why no model can be made of the file, in the errors of PartFor; OK if it holds a usable part.
absl::Status CheckUsable(const FileKind& kind, const std::string& path);

// Returns one line: "FLUX.1 transformer (fp8 with scales), autoencoder, CLIP, T5".
std::string DescribeKind(const FileKind& kind);

// Checks the quantization_config of a component's config.json: FailedPrecondition, naming the method, unless it is
// absent or one that is read. `name` is the component.
absl::Status CheckQuantizationConfig(const base::Json& config, const std::string& name);

// Return the errors for a component whose only weights are pickles or GGUF files; `files` names them.
absl::Status PickledWeightsError(const std::string& name, const std::string& files);
absl::Status GgufWeightsError(const std::string& name, const std::string& files);

}  // namespace tessera::models
