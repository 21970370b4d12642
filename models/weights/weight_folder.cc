#include "models/weights/weight_folder.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"
#include "models/weights/file_kind.h"
#include "models/weights/foreign_weights.h"

namespace tessera::models {

namespace {

constexpr std::string_view kExtension = ".safetensors";
constexpr std::string_view kIndexExtension = ".safetensors.index.json";
constexpr size_t kMaxShardIndexBytes = kMaxSafetensorsHeaderBytes;
constexpr size_t kMaxProblems = 20;

using FileNames = std::set<std::string>;

absl::StatusOr<FileNames> ListFolder(const std::string& folder, const std::string& name) {
  std::error_code error;
  FileNames names;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    names.insert(entry->path().filename().string());
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot list folder ", name));
  return names;
}

struct WeightsFile {
  std::string name;
  bool is_index = false;
};

std::optional<WeightsFile> ChooseFile(const FileNames& names) {
  constexpr const char* kStems[] = {"diffusion_pytorch_model", "model"};
  std::set<std::string> known_indices;
  std::optional<WeightsFile> chosen;
  const auto consider = [&](const std::string& name, bool is_index) {
    if (is_index) known_indices.insert(name);
    if (!chosen && names.contains(name)) chosen = WeightsFile{name, is_index};
  };
  for (const std::string variant : {"", ".fp16", ".bf16"}) {
    for (const std::string stem : kStems) consider(stem + variant + ".safetensors", false);
    for (const std::string stem : kStems) {
      consider(stem + ".safetensors.index" + variant + ".json", true);
      consider(stem + variant + ".safetensors.index.json", true);
    }
  }
  for (const std::string& name : names) {
    if (name.ends_with(kIndexExtension) && !known_indices.contains(name)) consider(name, true);
  }
  return chosen;
}

absl::Status NothingToRead(const FileNames& names, const std::string& name) {
  std::vector<std::string> safetensors, pickled, packed;
  for (const std::string& file : names) {
    if (file.ends_with(kExtension)) safetensors.push_back(base::Quote(file));
    if (file.ends_with(".gguf")) packed.push_back(base::Quote(file));
    for (const char* extension : {".bin", ".pt", ".pth", ".ckpt"}) {
      if (file.ends_with(extension)) pickled.push_back(base::Quote(file));
    }
  }
  if (!safetensors.empty()) {
    return absl::NotFoundError(absl::StrCat(name, " has no weights under a known name, but ",
                                            absl::StrJoin(safetensors, ", "),
                                            "; valid values are diffusion_pytorch_model.safetensors and "
                                            "model.safetensors, their fp16 and bf16 variants, and ",
                                            "shards together with their *.safetensors.index.json"));
  }
  if (!packed.empty()) return GgufWeightsError(name, absl::StrJoin(packed, ", "));
  if (!pickled.empty()) {
    return PickledWeightsError(name, absl::StrJoin(pickled, ", "));
  }
  return absl::NotFoundError(absl::StrCat(
      name, " has no weights; diffusion_pytorch_model.safetensors or model.safetensors, or an index, is expected"));
}

absl::Status Join(const std::vector<std::string>& problems) {
  if (problems.empty()) return absl::OkStatus();
  const size_t shown = std::min(problems.size(), kMaxProblems);
  std::string text = absl::StrJoin(problems.begin(), problems.begin() + shown, "\n");
  if (problems.size() > shown) absl::StrAppend(&text, "\nand ", problems.size() - shown, " more like these");
  return absl::InvalidArgumentError(text);
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseWeightIndex(std::string_view text, const std::string& name) {
  ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(text, name, kMaxShardIndexBytes));
  const base::Json* weight_map = json.Find("weight_map");
  if (weight_map == nullptr || !weight_map->is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": field \"weight_map\" is ",
                                                   weight_map ? weight_map->Describe() : "missing",
                                                   "; it must be an object from tensor names to file names"));
  }
  if (weight_map->members().empty()) return absl::InvalidArgumentError(absl::StrCat(name, ": \"weight_map\" is empty"));
  std::map<std::string, std::string> result;
  std::vector<std::string> problems;
  for (const base::JsonMember& member : weight_map->members()) {
    const std::string* file = member.value.AsString();
    if (file == nullptr || !base::IsPlainFileName(*file) || !file->ends_with(kExtension)) {
      problems.push_back(absl::StrCat(name, ": tensor ", base::Quote(member.key), " is mapped to ",
                                      member.value.Describe(),
                                      "; it must be the name of a .safetensors file in the same folder"));
    } else {
      result.emplace(member.key, *file);
    }
  }
  RETURN_IF_ERROR(Join(problems));
  return result;
}

bool WeightFolder::HasWeights(const std::string& folder) {
  const absl::StatusOr<FileNames> names = ListFolder(folder, folder);
  return names.ok() && ChooseFile(*names).has_value();
}

absl::StatusOr<WeightFolder> WeightFolder::Open(const std::string& folder, const std::string& name) {
  ASSIGN_OR_RETURN(const FileNames names, ListFolder(folder, name));
  const std::optional<WeightsFile> chosen = ChooseFile(names);
  if (!chosen) return NothingToRead(names, name);

  std::map<std::string, std::string> index;
  std::set<std::string> shards = {chosen->name};
  const std::string index_name = absl::StrCat(name, "/", chosen->name);
  if (chosen->is_index) {
    const absl::StatusOr<std::string> text =
        base::ReadWholeFile(absl::StrCat(folder, "/", chosen->name), index_name, kMaxShardIndexBytes);
    if (!text.ok()) return text.status();
    absl::StatusOr<std::map<std::string, std::string>> parsed = ParseWeightIndex(*text, index_name);
    if (!parsed.ok()) return parsed.status();
    index = *std::move(parsed);
    shards.clear();
    for (const auto& [tensor, shard] : index) shards.insert(shard);
  }

  WeightFolder result;
  std::vector<std::string> problems;
  for (const std::string& shard : shards) {
    absl::StatusOr<SafetensorsFile> file =
        SafetensorsFile::Open(absl::StrCat(folder, "/", shard), absl::StrCat(name, "/", shard));
    if (!file.ok()) {
      if (shards.size() == 1) return file.status();
      problems.emplace_back(file.status().message());
      continue;
    }
    RETURN_IF_ERROR(CheckNotQuantized(file->tensors(), name));
    for (const StoredTensor& tensor : file->tensors()) {
      const auto [other, added] = result.tensors_.emplace(tensor.name, Location{result.files_.size(), tensor});
      if (!added) {
        problems.push_back(absl::StrCat(name, ": tensor ", base::Quote(tensor.name), " is both in ",
                                        result.file_names_[other->second.file], " and in ", shard));
      } else if (chosen->is_index && !index.contains(tensor.name)) {
        problems.push_back(
            absl::StrCat(index_name, ": tensor ", base::Quote(tensor.name), " of ", shard, " is not mapped"));
      }
      result.total_bytes_ += tensor.bytes();
    }
    result.file_names_.push_back(shard);
    result.files_.push_back(*std::move(file));
  }
  for (const auto& [tensor, shard] : index) {
    const auto opened = std::find(result.file_names_.begin(), result.file_names_.end(), shard);
    if (opened == result.file_names_.end()) continue;  // reported already
    if (result.files_[opened - result.file_names_.begin()].Find(tensor) == nullptr) {
      problems.push_back(absl::StrCat(index_name, ": tensor ", base::Quote(tensor), " is not in ", shard));
    }
  }
  RETURN_IF_ERROR(Join(problems));
  return result;
}

absl::Status WeightFolder::Read(const Location& location, uint64_t offset, std::span<std::byte> out) const {
  return files_[location.file].Read(location.tensor, offset, out);
}

absl::Status WeightFolder::Read(std::string_view tensor, std::span<std::byte> out) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) return absl::NotFoundError(absl::StrCat("there is no tensor ", base::Quote(tensor)));
  if (out.size() != found->second.tensor.bytes()) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", base::Quote(tensor), " has ",
                                                   found->second.tensor.bytes(), " bytes; ", out.size(),
                                                   " were requested"));
  }
  return Read(found->second, 0, out);
}

void WeightFolder::AddToDigest(base::Sha256& digest) const {
  for (size_t i = 0; i < files_.size(); ++i) {
    digest.UpdatePart(file_names_[i]);
    digest.UpdatePart(files_[i].header_digest());
  }
}

}  // namespace tessera::models
