// WeightFolder holds the weights of one component of a model: one safetensors file, or several files and the index that
// maps tensors to files. File names are those that diffusers and transformers write.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/sha256.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

// Returns the file name of each tensor, from the text of an index (*.safetensors.index.json). Returns InvalidArgument,
// naming `name`, unless every file is a plain *.safetensors name, which cannot lead out of the index's folder.
absl::StatusOr<std::map<std::string, std::string>> ParseWeightIndex(std::string_view text, const std::string& name);

// Owns the open files. Movable; const methods are thread-safe.
class WeightFolder {
 public:
  struct Location {
    size_t file = 0;  // index into files()
    StoredTensor tensor;
  };
  using Tensors = std::map<std::string, Location, std::less<>>;

  // Opens the first of these that exists: diffusion_pytorch_model.safetensors or model.safetensors; their index; the
  // same files of the fp16 and then the bf16 variant; any other *.safetensors.index.json. `name` appears in errors,
  // e.g. "transformer". All disagreements between an index and its files are reported in one error.
  static absl::StatusOr<WeightFolder> Open(const std::string& folder, const std::string& name);

  // Whether Open would find a file.
  static bool HasWeights(const std::string& folder);

  const Tensors& tensors() const { return tensors_; }
  const std::vector<std::string>& files() const { return file_names_; }  // relative to the folder
  uint64_t total_bytes() const { return total_bytes_; }

  // Fills `out` with a tensor's bytes from `offset` on. Returns the errors of SafetensorsFile::Read.
  absl::Status Read(const Location& location, uint64_t offset, std::span<std::byte> out) const;
  // Reads a whole tensor. Returns NotFound if there is no tensor of that name, InvalidArgument if `out` does not have
  // its size.
  absl::Status Read(std::string_view tensor, std::span<std::byte> out) const;

  // Adds the names and headers of all files to the digest, but not the tensors' bytes.
  void AddToDigest(base::Sha256& digest) const;

 private:
  WeightFolder() = default;

  std::vector<std::string> file_names_;
  std::vector<SafetensorsFile> files_;
  Tensors tensors_;
  uint64_t total_bytes_ = 0;
};

}  // namespace tessera::models
