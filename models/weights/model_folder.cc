#include "models/weights/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/text/hub_name.h"
#include "control/model/component_role.h"
#include "control/model/pipelines.h"
#include "models/keymaps/key_map.h"
#include "models/weights/file_kind.h"
#include "models/weights/foreign_weights.h"

namespace tessera::models {

namespace {

namespace fs = std::filesystem;

constexpr char kIndexName[] = "model_index.json";
constexpr size_t kMaxIndexBytes = 16 << 20;

// Never truncated, because the user may copy it.
std::string QuotePath(const fs::path& path) { return base::Quote(path.string(), std::string::npos); }

bool IsFolder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

bool Exists(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// Returns the error for a file that the user gave as a model.
absl::Status FileError(const fs::path& file) {
  for (fs::path model : {file.parent_path(), file.parent_path().parent_path()}) {
    if (model.empty()) model = ".";
    if (Exists(model / kIndexName)) {
      return absl::FailedPreconditionError(
          absl::StrCat(QuotePath(file), " is one file of a model; the model is the folder ", QuotePath(model)));
    }
  }
  if (const std::string problem = control::RepositoryProblem(file.filename().string()); !problem.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(QuotePath(file), ": ", problem));
  }
  return SingleFileError(file.string());
}

absl::Status NoIndexError(const fs::path& path) {
  const std::string shown = QuotePath(path);
  if (IsFolder(path / "snapshots")) {
    return absl::FailedPreconditionError(absl::StrCat(
        shown, " is the folder of a download cache; the model is one of the folders in its \"snapshots\""));
  }
  if (Exists(path / "config.json")) {
    return absl::FailedPreconditionError(absl::StrCat(
        shown, " has a config.json and no model_index.json: it is one component; name the model's folder"));
  }
  std::error_code error;
  std::vector<fs::path> checkpoints;
  for (fs::directory_iterator entry(path, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (IsCheckpointName(entry->path().string())) checkpoints.push_back(entry->path());
  }
  if (!checkpoints.empty()) {
    const absl::Status conversion = FileError(*std::min_element(checkpoints.begin(), checkpoints.end()));
    return absl::FailedPreconditionError(absl::StrCat(
        shown, " has no model_index.json, but ", checkpoints.size(),
        checkpoints.size() == 1 ? " checkpoint file: " : " checkpoint files: ", std::string(conversion.message())));
  }
  return absl::FailedPreconditionError(
      absl::StrCat(shown, " has no model_index.json; a folder in the diffusers layout is needed"));
}

// Returns the name of a component's configuration in its folder.
std::string ConfigName(const std::string& component) {
  if (component.starts_with("scheduler")) return "scheduler_config.json";
  if (component.starts_with("tokenizer")) return "tokenizer_config.json";
  if (component.starts_with("feature_extractor")) return "preprocessor_config.json";
  return "config.json";
}

control::ComponentRole RoleOf(std::string_view name) {
  if (name == "transformer") return control::ComponentRole::kTransformer;
  if (name == "vae") return control::ComponentRole::kAutoencoder;
  return name.starts_with("text_encoder") ? control::ComponentRole::kTextEncoder : control::ComponentRole::kOther;
}

}  // namespace

absl::StatusOr<ModelIndex> ParseModelIndex(std::string_view text, const std::string& name) {
  ASSIGN_OR_RETURN(base::ConfigReader config, base::ConfigReader::FromText(text, name));
  ModelIndex index;
  index.json = config.json();
  index.class_name = config.RequiredString("_class_name");
  if (index.class_name.empty() && config.status().ok()) {
    config.AddError("_class_name", "it must be the class of the pipeline, for example \"PixArtSigmaPipeline\"");
  }
  for (const base::JsonMember& member : index.json.members()) {
    const std::span<const base::Json> pair = member.value.items();
    if (member.key.starts_with('_') || pair.size() != 2) continue;
    const std::string* library = pair[0].AsString();
    const std::string* class_name = pair[1].AsString();
    if (library != nullptr && class_name != nullptr) {
      if (!base::IsPlainFileName(member.key)) {
        config.AddError(member.key, "the name of a component must be the plain name of a folder");
      }
      index.components[member.key] = {*library, *class_name, RoleOf(member.key)};
    } else if ((library || class_name) && (pair[0].is_null() || pair[1].is_null())) {
      config.AddError(member.key, "a component must be [\"library\", \"class\"], or [null, null] if it is absent");
    }
  }
  if (!config.status().ok()) return config.status();
  return index;
}

absl::StatusOr<ModelFolder> ModelFolder::Open(const std::string& path, const ComponentFolders& elsewhere) {
  if (path.empty()) return absl::InvalidArgumentError("the model's path is empty");
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the model's path ", QuotePath(path), " holds a NUL byte"));
  }
  std::error_code error;
  const fs::file_status found = fs::status(path, error);
  if (found.type() == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat("there is no model at ", QuotePath(path)));
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot examine model ", QuotePath(path)));
  if (found.type() != fs::file_type::directory) {
    if (found.type() == fs::file_type::regular && IsCheckpointName(path)) return FileError(path);
    return absl::FailedPreconditionError(
        absl::StrCat(QuotePath(path), " is not a folder; a model is a folder with a model_index.json"));
  }
  const std::string index_path = absl::StrCat(path, "/", kIndexName);
  absl::StatusOr<std::string> text = base::ReadWholeFile(index_path, kIndexName, kMaxIndexBytes);
  if (absl::IsNotFound(text.status()) && !fs::is_symlink(index_path, error)) return NoIndexError(path);
  if (!text.ok()) return text.status();
  ASSIGN_OR_RETURN(ModelIndex index, ParseModelIndex(*text, kIndexName));

  for (const auto& [component, folder] : elsewhere) {
    if (!index.components.contains(component)) {
      return absl::InvalidArgumentError(
          absl::StrCat("model_index.json lists no component ", base::Quote(component), ", which another folder has"));
    }
  }
  ModelFolder model(path, std::move(index), elsewhere);
  std::vector<std::string> missing;
  for (const auto& [component, unused] : model.components()) {
    if (!IsFolder(model.FolderOf(component))) missing.push_back(component);
  }
  if (!missing.empty()) {
    std::string advice = control::PipelineProblem(model.class_name());
    if (advice.empty() && base::HubNameOfPath(path)) {
      advice = absl::StrCat("complete the download with: ", base::HubDownloadCommand(path));
    }
    return absl::NotFoundError(absl::StrCat(
        "model ", QuotePath(path), " has no folder for ", missing.size() == 1 ? "component " : "components ",
        absl::StrJoin(missing, ", "), ", which its model_index.json lists", advice.empty() ? "" : "; ", advice));
  }
  return model;
}

ModelFolder ModelFolder::Without(const std::string& component) const {
  ModelFolder other = *this;
  other.index_.components.erase(component);
  return other;
}

absl::StatusOr<std::string> ModelFolder::ComponentPath(const std::string& component) const {
  if (!HasComponent(component)) {
    std::vector<std::string> names;
    for (const auto& [name, unused] : index_.components) names.push_back(name);
    return absl::NotFoundError(absl::StrCat("model_index.json lists no component ", base::Quote(component),
                                            "; there are ", names.empty() ? "none" : absl::StrJoin(names, ", ")));
  }
  return FolderOf(component);
}

std::string ModelFolder::FolderOf(const std::string& component) const {
  const auto other = elsewhere_.find(component);
  return other != elsewhere_.end() ? other->second : absl::StrCat(path_, "/", component);
}

absl::StatusOr<base::ConfigReader> ModelFolder::Config(const std::string& component) const {
  ASSIGN_OR_RETURN(const std::string folder, ComponentPath(component));
  const std::string name = ConfigName(component);
  return base::ConfigReader::FromFile(absl::StrCat(folder, "/", name), absl::StrCat(component, "/", name));
}

absl::StatusOr<WeightFolder> ModelFolder::Weights(const std::string& component) const {
  ASSIGN_OR_RETURN(const std::string path, ComponentPath(component));
  if (IsFolder(path)) return WeightFolder::Open(path, component);
  ASSIGN_OR_RETURN(const base::ConfigReader config, Config(component));
  return OpenWeightFile(path, component, index_.components.at(component).class_name, config.json());
}

absl::StatusOr<WeightFolder> OpenWeightFile(const std::string& path, const std::string& component,
                                            const std::string& class_name, const base::Json& config) {
  ASSIGN_OR_RETURN(const FileKind kind, ReadFileKind(path));
  ASSIGN_OR_RETURN(const FilePart part, PartFor(kind, path, component, class_name));
  ASSIGN_OR_RETURN(std::optional<KeyMap> keys, KeyMapOf(class_name, config, part.form));
  if (!keys) {
    return absl::UnimplementedError(absl::StrCat(QuotePath(path), ": its names are not known for a ", class_name));
  }
  return WeightFolder::OpenFile(path, part.prefix, *std::move(keys));
}

absl::StatusOr<std::string> ModelFolder::Digest() const {
  base::Sha256 digest;
  // Names with their paths.
  std::vector<std::pair<std::string, std::string>> files = {{kIndexName, absl::StrCat(path_, "/", kIndexName)}};
  for (const auto& [component, unused] : index_.components) {
    std::vector<std::string> configs = {ConfigName(component)};
    // Files of different versions; pictures are prepared as one of them says.
    if (component == "processor") configs = {"preprocessor_config.json", "processor_config.json"};
    for (const std::string& config : configs) {
      const std::string file = absl::StrCat(FolderOf(component), "/", config);
      if (Exists(file)) files.emplace_back(absl::StrCat(component, "/", config), file);
    }
  }
  for (const auto& [file, file_path] : files) {
    ASSIGN_OR_RETURN(const std::string text, base::ReadWholeFile(file_path, file, kMaxIndexBytes));
    digest.UpdatePart(file);
    digest.UpdatePart(text);
  }
  for (const auto& [component, unused] : index_.components) {
    const std::string folder = FolderOf(component);
    if (!WeightFolder::HasWeights(folder)) continue;
    ASSIGN_OR_RETURN(const WeightFolder weights, WeightFolder::Open(folder, component));
    digest.UpdatePart(component);
    weights.AddToDigest(digest);
  }
  return digest.Finish();
}

}  // namespace tessera::models
