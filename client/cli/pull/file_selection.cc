#include "client/cli/pull/file_selection.h"

#include <algorithm>
#include <map>
#include <regex>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/json/json.h"
#include "base/macros/status_macros.h"

namespace tessera::client {
namespace {

constexpr char kIndexFile[] = "model_index.json";
constexpr uint64_t kMaxSmallFileBytes = 64 << 20;  // of a tokenizer or a configuration
constexpr size_t kMaxComponents = 64;

// Weights in any format, and the indices of their shards.
bool IsWeightFile(std::string_view name) {
  if (name.find(".index.") != name.npos && name.ends_with(".json")) return true;
  for (const std::string_view ending : {".safetensors", ".bin", ".msgpack", ".onnx", ".onnx_data", ".onnx.data", ".pb",
                                        ".h5", ".ckpt", ".pt", ".pth", ".gguf", ".xml", ".tflite", ".mlmodel"}) {
    if (name.ends_with(ending)) return true;
  }
  return false;
}

bool IsKeptAtTheRoot(const std::string& path) {
  const std::string name = absl::AsciiStrToLower(path);
  if (path == kIndexFile || name == "readme.md" || name == "notice" || name.starts_with("notice.")) return true;
  const bool is_text = name.find('.') == std::string::npos || name.ends_with(".md") || name.ends_with(".txt") ||
                       name.ends_with(".pdf") || name.ends_with(".rst");
  return is_text && (absl::StrContains(name, "licen") || absl::StrContains(name, "use_policy") ||
                     absl::StrContains(name, "use-policy"));
}

// The weights of one kind in a component's folder: a single file, or shards with their index.
struct WeightSet {
  std::vector<const HubFile*> single, sharded;

  const std::vector<const HubFile*>& best() const { return single.empty() ? sharded : single; }
};

// Returns the weights of this variant and format, by name: STEM[.VARIANT].FORMAT, or the shards
// STEM[.VARIANT]-00001-of-00002.FORMAT and STEM-00001-of-00002.VARIANT.FORMAT with STEM.FORMAT.index[.VARIANT].json.
WeightSet Weights(const std::map<std::string, const HubFile*>& files, const std::string& stem,
                  const std::string& variant, const std::string& format) {
  const std::string dotted = variant.empty() ? "" : "." + variant;
  constexpr char kShard[] = "-\\d{5}-of-\\d{5}";
  const std::string before = variant.empty() ? "" : "\\." + variant;
  const std::regex shards(absl::StrCat(stem, "(", before, kShard, "|", kShard, before, ")\\.", format));
  WeightSet set;
  bool has_index = false;
  for (const auto& [name, file] : files) {
    if (name == absl::StrCat(stem, dotted, ".", format)) {
      set.single.push_back(file);
    } else if (name == absl::StrCat(stem, dotted, ".", format, ".index.json") ||
               name == absl::StrCat(stem, ".", format, ".index", dotted, ".json")) {
      set.sharded.push_back(file);
      has_index = true;
    } else if (std::regex_match(name, shards)) {
      set.sharded.push_back(file);
    }
  }
  if (!has_index) set.sharded.clear();
  return set;
}

// Returns the weights in the order of models/weights/weight_folder.h; empty if the folder has none.
std::vector<const HubFile*> BestWeights(const std::map<std::string, const HubFile*>& files, bool& foreign) {
  for (const std::string variant : {"", "fp16", "bf16"}) {
    for (const std::string stem : {"diffusion_pytorch_model", "model"}) {
      if (const WeightSet set = Weights(files, stem, variant, "safetensors"); !set.best().empty()) return set.best();
    }
  }
  std::vector<const HubFile*> others;
  for (const auto& [name, file] : files) {
    if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) others.push_back(file);
  }
  if (!others.empty()) return others;
  for (const std::string stem : {"diffusion_pytorch_model", "pytorch_model"}) {
    if (const WeightSet set = Weights(files, stem, "", "bin"); !set.best().empty()) {
      foreign = true;
      return set.best();
    }
  }
  return {};
}

}  // namespace

absl::StatusOr<PipelineIndex> ParsePipelineIndex(std::string_view json) {
  ASSIGN_OR_RETURN(const base::Json index, base::ParseJson(json, kIndexFile));
  const base::Json* class_name = index.Find("_class_name");
  if (class_name == nullptr || class_name->AsString() == nullptr) {
    return absl::FailedPreconditionError(
        "model_index.json: the field \"_class_name\" is missing; it is no diffusers model");
  }
  PipelineIndex parsed = {.class_name = *class_name->AsString()};
  for (const base::JsonMember& member : index.members()) {
    const std::span<const base::Json> pair = member.value.items();
    if (member.key.starts_with('_') || pair.size() != 2 || !pair[0].AsString() || !pair[1].AsString()) continue;
    if (!base::IsPlainFileName(member.key) || parsed.components.size() == kMaxComponents) {
      return absl::FailedPreconditionError(
          absl::StrCat("model_index.json: ", base::Quote(member.key), " cannot be the folder of a component"));
    }
    parsed.components.push_back(member.key);
  }
  return parsed;
}

absl::StatusOr<FileSelection> SelectFiles(const HubListing& listing, const PipelineIndex& index,
                                          const std::vector<std::string>& only) {
  for (const std::string& component : only) {
    if (std::ranges::find(index.components, component) != index.components.end()) continue;
    return absl::InvalidArgumentError(absl::StrCat("only is ", base::Quote(component), "; the model's components are ",
                                                   absl::StrJoin(index.components, ", ")));
  }
  FileSelection selection;
  std::map<std::string, std::map<std::string, const HubFile*>> folders;
  for (const HubFile& file : listing.files) {
    const size_t slash = file.path.find('/');
    if (slash == std::string::npos) {
      if (!only.empty() && file.path == kIndexFile) continue;
      if (IsKeptAtTheRoot(file.path) && file.size <= kMaxSmallFileBytes) selection.files.push_back(file);
    } else if (file.path.find('/', slash + 1) == std::string::npos) {
      folders[file.path.substr(0, slash)][file.path.substr(slash + 1)] = &file;
    }
  }
  for (const std::string& component : only.empty() ? index.components : only) {
    const auto folder = folders.find(component);
    if (folder == folders.end()) {
      return absl::NotFoundError(
          absl::StrCat("the repository has no folder ", component, ", which its ", kIndexFile, " lists"));
    }
    bool foreign = false;
    for (const auto& [name, file] : folder->second) {
      if (!IsWeightFile(name) && file->size <= kMaxSmallFileBytes) selection.files.push_back(*file);
    }
    for (const HubFile* file : BestWeights(folder->second, foreign)) selection.files.push_back(*file);
    if (foreign) selection.foreign.push_back(component);
  }
  return selection;
}

}  // namespace tessera::client
