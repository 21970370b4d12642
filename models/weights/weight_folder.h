// WeightFolder holds the weights of one component of a model: a folder with one safetensors file or several files and
// the index that maps tensors to files, under the names that diffusers and transformers write; or a single file,
// safetensors or GGUF, under the names that its authors gave it, perhaps with other components in the same file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/file_identity.h"
#include "base/files/sha256.h"
#include "models/keymaps/key_map.h"
#include "models/weights/any_tensor_file.h"
#include "models/weights/quantization.h"

namespace tessera::models {

// Returns the file name of each tensor, from the text of an index (*.safetensors.index.json). Returns InvalidArgument,
// naming `name`, unless every file is a plain *.safetensors name, which cannot lead out of the index's folder.
absl::StatusOr<std::map<std::string, std::string>> ParseWeightIndex(std::string_view text, const std::string& name);

// Owns the open files. Movable; const methods are thread-safe.
class WeightFolder {
 public:
  using Location = WeightLocation;
  using Tensors = WeightLocations;

  // Opens the first of these that exists: diffusion_pytorch_model.safetensors or model.safetensors; their index; the
  // same files of the fp16 and then the bf16 variant; any other *.safetensors.index.json. `name` appears in errors,
  // e.g. "transformer". All disagreements between an index and its files are reported in one error.
  static absl::StatusOr<WeightFolder> Open(const std::string& folder, const std::string& name);

  // Opens the component in one file whose names begin with `prefix`; `keys` translates the rest of each name. Errors
  // name the file.
  // A second file, `more`, may hold further tensors of the component, without a prefix; empty: none.
  static absl::StatusOr<WeightFolder> OpenFile(const std::string& path, const std::string& prefix, KeyMap keys,
                                               const std::string& more = "");

  // Whether the path is a file, or a folder in which Open would find one.
  static bool HasWeights(const std::string& path);

  // The shape of a parameter, by its name or an alias; null if the component has no such parameter.
  using ShapeOf = std::function<const std::vector<int64_t>*(std::string_view name)>;

  // Whether the names are those of the file and Name must be called before the weights are used.
  bool is_foreign() const { return keys_.has_value() && !is_named_; }

  // Translates the file's names to those of parameters. A tensor that holds several of them is divided as their shapes
  // say. Returns InvalidArgument with all tensors that are unknown or have another shape; the names in it are the
  // file's.
  absl::Status Name(const ShapeOf& shape_of);
  // The name of the file's tensor that holds a parameter, if the file's names are others.
  std::optional<std::string> NameInFile(std::string_view parameter) const;

  const Tensors& tensors() const { return tensors_; }
  const std::vector<std::string>& files() const { return file_names_; }  // relative to the folder
  uint64_t total_bytes() const { return total_bytes_; }

  // Fills `out` with a weight's bytes from `offset` on, in the order of its own rows. Returns the errors of
  // SafetensorsFile::Read.
  absl::Status Read(const Location& location, uint64_t offset, std::span<std::byte> out) const;
  // Reads a whole tensor. Returns NotFound if there is no tensor of that name, InvalidArgument if `out` does not have
  // its size.
  absl::Status Read(std::string_view tensor, std::span<std::byte> out) const;
  // See models::ReadScales.
  absl::Status ReadScales(const Location& location, int64_t row, int64_t rows, int64_t columns,
                          std::span<float> out) const;

  // FailedPrecondition if a file was written to since it was opened. A file that was replaced by another is still open
  // as it was.
  absl::Status CheckUnchanged() const;

  // Adds the names and headers of all files to the digest, but not the tensors' bytes.
  void AddToDigest(base::Sha256& digest) const;

 private:
  WeightFolder() = default;

  // Resolves the quantization of the tensors, whose names had this prefix in the files.
  absl::Status Resolve(const std::string& prefix, const std::string& name);
  // Adds the tensors of a file whose names begin with `prefix`.
  absl::Status AddFile(const std::string& path, const std::string& prefix);
  // Valid as long as this object is not moved.
  ReadStored Reader() const;
  // Reads a range of the stored rows, in which parts follow one another.
  absl::Status ReadParts(const Location& location, uint64_t offset, std::span<std::byte> out) const;

  std::string name_;  // in errors
  std::vector<std::string> file_names_;
  std::vector<AnyTensorFile> files_;
  std::vector<std::pair<std::string, base::FileIdentity>> opened_;  // paths of the files, and what they were
  std::optional<KeyMap> keys_;
  bool is_named_ = false;
  Tensors tensors_;
  uint64_t total_bytes_ = 0;
};

}  // namespace tessera::models
