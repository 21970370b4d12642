#include "runtime/group/model_contents.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <future>
#include <span>
#include <system_error>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/path_state.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"
#include "models/tokenizers/stored_tokenizer.h"
#include "models/weights/weight_folder.h"

namespace tessera::runtime {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;  // of files that are read as a whole, such as vocabularies
constexpr size_t kBufferBytes = size_t{4} << 20;

// Adds the files' names and headers and the bytes of all tensors.
absl::Status AddWeights(const models::WeightFolder& weights, const std::function<absl::Status()>& progress,
                        base::Sha256& digest) {
  weights.AddToDigest(digest);
  std::string buffer;
  for (const auto& [name, location] : weights.tensors()) {
    const uint64_t bytes = location.bytes();
    for (uint64_t offset = 0; offset < bytes; offset += buffer.size()) {
      buffer.resize(std::min<uint64_t>(kBufferBytes, bytes - offset));
      RETURN_IF_ERROR(weights.Read(location, offset, std::as_writable_bytes(std::span(buffer))));
      digest.Update(buffer);
      RETURN_IF_ERROR(progress());
    }
  }
  return absl::OkStatus();
}

// Whether the file is a weight file too large to be read as a whole; AddWeights covers all of it.
bool IsLargeWeights(const std::string& path) {
  std::error_code failed;
  const uintmax_t bytes = std::filesystem::file_size(path, failed);
  return path.ends_with(".safetensors") && !failed && bytes > kMaxFileBytes;
}

absl::StatusOr<std::string> DigestOf(const models::ModelFolder& folder, const control::ModelComponent& component,
                                     const std::function<absl::Status()>& progress) {
  ASSIGN_OR_RETURN(const std::string path, folder.ComponentPath(component.name));
  base::Sha256 digest;
  // A component in a single file is its weights alone.
  std::vector<std::string> files = base::IsFile(path) ? std::vector<std::string>() : component.files;
  std::error_code ignored;
  if (std::filesystem::exists(path + "/config.json", ignored)) files.emplace_back("config.json");
  for (const std::string& file : files) {
    digest.UpdatePart(file);
    const std::string file_path = absl::StrCat(path, "/", file);
    if (IsLargeWeights(file_path)) continue;
    ASSIGN_OR_RETURN(const std::string bytes,
                     base::ReadWholeFile(file_path, absl::StrCat(component.name, "/", file), kMaxFileBytes));
    digest.UpdatePart(bytes);
  }
  if (base::IsFile(path) && !folder.HasWeights(component.name)) {  // a tokenizer in a file of weights
    ASSIGN_OR_RETURN(const models::JsonTokenizerFiles stored, models::ReadStoredTokenizer(path));
    digest.UpdatePart(stored.tokenizer_json);
    digest.UpdatePart(stored.tokenizer_config_json);
  }
  if (folder.HasWeights(component.name)) {
    ASSIGN_OR_RETURN(const models::WeightFolder weights, folder.Weights(component.name));
    RETURN_IF_ERROR(AddWeights(weights, progress, digest));
  }
  return digest.Finish();
}

}  // namespace

absl::StatusOr<ModelContents> DigestContents(const models::ModelFolder& folder,
                                             const control::ModelDescription& description,
                                             const std::function<absl::Status()>& progress) {
  base::Sha256 model, autoencoder, text;
  model.UpdatePart(description.digest);
  text.UpdatePart(description.digest);
  std::vector<std::future<absl::StatusOr<std::string>>> digests;
  for (const control::ModelComponent& component : description.components) {
    digests.push_back(std::async(std::launch::async, [&] { return DigestOf(folder, component, progress); }));
  }
  for (size_t i = 0; i < digests.size(); ++i) {
    const control::ModelComponent& component = description.components[i];
    ASSIGN_OR_RETURN(const std::string digest, digests[i].get());
    const auto add = [&](base::Sha256& to) {
      to.UpdatePart(component.name);
      to.UpdatePart(digest);
    };
    add(model);
    if (component.role == control::ComponentRole::kAutoencoder) add(autoencoder);
    if (component.role == control::ComponentRole::kTextEncoder || component.role == control::ComponentRole::kOther) {
      add(text);
    }
  }
  return ModelContents{.model = model.Finish(), .autoencoder = autoencoder.Finish(), .text = text.Finish()};
}

}  // namespace tessera::runtime
