#include "models/weights/model_folder.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/files/path_state.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "base/paths/path_text.h"
#include "base/text/hub_name.h"
#include "control/model/component_role.h"
#include "control/model/pipelines.h"
#include "control/parameters/component_files.h"
#include "models/keymaps/key_map.h"
#include "models/weights/file_kind.h"

namespace tessera::models {

namespace {

namespace fs = std::filesystem;

constexpr char kIndexName[] = "model_index.json";
constexpr size_t kMaxIndexBytes = 16 << 20;

// Returns the error for a file that cannot be a model because it is a part of one, or of a family that is not run by
// its name; OK for others.
absl::Status CheckModelFile(const fs::path& file) {
  for (fs::path model : {file.parent_path(), file.parent_path().parent_path()}) {
    if (model.empty()) model = ".";
    if (base::Exists(model / kIndexName)) {
      return absl::FailedPreconditionError(absl::StrCat(base::QuotePath(file.string()),
                                                        " is one file of a model; the model is the folder ",
                                                        base::QuotePath(model.string())));
    }
  }
  if (const std::string problem = control::RepositoryProblem(file.filename().string()); !problem.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(base::QuotePath(file.string()), ": ", problem));
  }
  return absl::OkStatus();
}

absl::Status NoIndexError(const fs::path& path) {
  const std::string shown = base::QuotePath(path.string());
  if (base::IsFolder(path / "snapshots")) {
    return absl::FailedPreconditionError(absl::StrCat(
        shown, " is the folder of a download cache; the model is one of the folders in its \"snapshots\""));
  }
  if (base::Exists(path / "config.json")) {
    return absl::FailedPreconditionError(absl::StrCat(
        shown, " has a config.json and no model_index.json: it is one component; name the model's folder"));
  }
  std::error_code error;
  std::vector<fs::path> checkpoints;
  for (fs::directory_iterator entry(path, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (IsCheckpointName(entry->path().string())) checkpoints.push_back(entry->path());
  }
  if (!checkpoints.empty()) {
    const fs::path& first = *std::min_element(checkpoints.begin(), checkpoints.end());
    return absl::FailedPreconditionError(absl::StrCat(
        shown, " has no model_index.json, but ", checkpoints.size(), checkpoints.size() == 1 ? " file" : " files",
        " with weights; use that of the transformer as the model: ", "tessera generate PROMPT --model ",
        base::ShellWord(first.string())));
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

absl::StatusOr<ModelFolder> ModelFolder::OpenFile(const std::string& path, const control::ComponentFiles& files) {
  RETURN_IF_ERROR(CheckModelFile(path));
  ASSIGN_OR_RETURN(SingleModel single, AssembleModel(path, files));
  if (!single.missing.empty()) return MissingPartsError(single, path);
  ASSIGN_OR_RETURN(ModelIndex index, ParseModelIndex(single.index, kIndexName));
  ModelFolder model(path, std::move(single.index), std::move(index));
  model.sources_ = std::move(single.sources);
  return model;
}

absl::StatusOr<ModelFolder> ModelFolder::OpenFolder(const std::string& path) {
  const std::string index_path = absl::StrCat(path, "/", kIndexName);
  absl::StatusOr<std::string> text = base::ReadWholeFile(index_path, kIndexName, kMaxIndexBytes);
  std::error_code error;
  if (absl::IsNotFound(text.status()) && !fs::is_symlink(index_path, error)) return NoIndexError(path);
  if (!text.ok()) return text.status();
  ASSIGN_OR_RETURN(ModelIndex index, ParseModelIndex(*text, kIndexName));
  return ModelFolder(path, *std::move(text), std::move(index));
}

absl::StatusOr<ModelFolder> ModelFolder::OpenAlone(const std::string& path, const control::ComponentFiles& files) {
  if (path.empty()) return absl::InvalidArgumentError("the model's path is empty");
  if (path.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat("the model's path ", base::QuotePath(path), " holds a NUL byte"));
  }
  std::error_code error;
  const fs::file_status found = fs::status(path, error);
  if (found.type() == fs::file_type::not_found) {
    return absl::NotFoundError(absl::StrCat("there is no model at ", base::QuotePath(path)));
  }
  if (error) return absl::ErrnoToStatus(error.value(), absl::StrCat("cannot examine model ", base::QuotePath(path)));
  if (found.type() == fs::file_type::directory) return OpenFolder(path);
  if (found.type() == fs::file_type::regular && IsCheckpointName(path)) return OpenFile(path, files);
  return absl::FailedPreconditionError(absl::StrCat(
      base::QuotePath(path), " is not a folder; a model is a folder with a model_index.json, or a file of weights"));
}

absl::StatusOr<ModelFolder> ModelFolder::Open(const std::string& path, const ComponentFolders& elsewhere) {
  ASSIGN_OR_RETURN(ModelFolder model, OpenAlone(path, {}));
  RETURN_IF_ERROR(model.SetSources(elsewhere));
  RETURN_IF_ERROR(model.CheckComponents());
  return model;
}

absl::StatusOr<ModelFolder> ModelFolder::OpenWith(const std::string& path, const control::ComponentFiles& files) {
  ASSIGN_OR_RETURN(ModelFolder model, OpenAlone(path, files));
  if (!files.empty() && base::IsFolder(path)) {
    ASSIGN_OR_RETURN(const std::vector<std::string> left_out, LeftOut(files, model.class_name()));
    for (const std::string& component : left_out) model.index_.components.erase(component);
    std::map<std::string, std::string> classes;
    for (const auto& [component, stated] : model.components()) classes[component] = stated.class_name;
    ASSIGN_OR_RETURN(model.sources_, SourcesOf(files, classes));
    RETURN_IF_ERROR(model.DeriveMissingConfigs());
  }
  RETURN_IF_ERROR(model.CheckComponents());
  return model;
}

absl::Status ModelFolder::SetSources(const ComponentFolders& elsewhere) {
  for (const auto& [component, path] : elsewhere) {
    const auto listed = index_.components.find(component);
    if (listed == index_.components.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("model_index.json lists no component ", base::Quote(component), ", which another folder has"));
    }
    const bool is_file = base::Exists(path) && !base::IsFolder(path);
    if (!is_file) {
      sources_[component] = {.path = path};
      continue;
    }
    ASSIGN_OR_RETURN(sources_[component], FileSource(path, component, listed->second.class_name));
  }
  return DeriveMissingConfigs();
}

absl::Status ModelFolder::DeriveMissingConfigs() {
  for (auto& [component, source] : sources_) {
    if (!source.part || source.config || base::Exists(ConfigPath(component, ConfigName(component)))) continue;
    RETURN_IF_ERROR(
        DeriveSourceConfig(source, index_.components.at(component).class_name, index_.class_name, component));
  }
  return absl::OkStatus();
}

absl::Status ModelFolder::CheckComponents() const {
  std::vector<std::string> missing;
  for (const auto& [component, unused] : components()) {
    const ComponentSource source = Source(component);
    const bool is_config = source.path.empty() && source.config;  // of a schedule, which has no files
    if (!is_config && !base::Exists(source.path)) missing.push_back(component);
  }
  if (!missing.empty()) {
    std::string advice = control::PipelineProblem(class_name());
    const auto is_optional = [&](const std::string& name) { return !OptionWithout(name, class_name()).empty(); };
    if (advice.empty() && std::ranges::all_of(missing, is_optional)) {
      advice = absl::StrCat("run the model without ", missing.size() == 1 ? "it" : "them",
                            " with: ", OptionWithout(missing.front(), class_name()));
    }
    if (control::PipelineProblem(class_name()).empty() && base::HubNameOfPath(path_)) {
      absl::StrAppend(&advice, advice.empty() ? "" : "; or ",
                      "complete the download with: ", base::HubDownloadCommand(path_));
    }
    return absl::NotFoundError(absl::StrCat(
        "model ", base::QuotePath(path_), " has no folder for ", missing.size() == 1 ? "component " : "components ",
        absl::StrJoin(missing, ", "), ", which its model_index.json lists", advice.empty() ? "" : "; ", advice));
  }
  for (const auto& [component, stated] : components()) {
    if (stated.role == control::ComponentRole::kOther || Source(component).part) continue;
    const absl::StatusOr<base::ConfigReader> config = Config(component);
    if (config.ok()) RETURN_IF_ERROR(CheckQuantizationConfig(config->json(), component));
  }
  return absl::OkStatus();
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
  return Source(component).path;
}

ComponentSource ModelFolder::Source(const std::string& component) const {
  const auto other = sources_.find(component);
  return other != sources_.end() ? other->second : ComponentSource{.path = absl::StrCat(path_, "/", component)};
}

std::string ModelFolder::ConfigPath(const std::string& component, const std::string& name) const {
  const ComponentSource source = Source(component);
  return absl::StrCat(source.part ? absl::StrCat(path_, "/", component) : source.path, "/", name);
}

absl::StatusOr<base::ConfigReader> ModelFolder::Config(const std::string& component) const {
  RETURN_IF_ERROR(ComponentPath(component).status());
  const std::string name = ConfigName(component), shown = absl::StrCat(component, "/", name);
  const ComponentSource source = Source(component);
  if (source.config) return base::ConfigReader::FromJson(*source.config, shown);
  return base::ConfigReader::FromFile(ConfigPath(component, name), shown);
}

bool ModelFolder::HasWeights(const std::string& component) const {
  const auto listed = index_.components.find(component);
  if (listed == index_.components.end()) return false;
  const std::string path = Source(component).path;
  if (listed->second.role == control::ComponentRole::kOther && base::IsFile(path)) return false;
  return WeightFolder::HasWeights(path);
}

ModelFolder ModelFolder::MeteredBy(std::shared_ptr<LoadMeter> meter) const {
  ModelFolder folder = *this;
  folder.meter_ = std::move(meter);
  return folder;
}

absl::StatusOr<WeightFolder> ModelFolder::Weights(const std::string& component) const {
  RETURN_IF_ERROR(ComponentPath(component).status());
  const ComponentSource source = Source(component);
  if (!source.part) return WeightFolder::Open(source.path, component);
  ASSIGN_OR_RETURN(const base::ConfigReader config, Config(component));
  return OpenSource(source, index_.components.at(component).class_name, config.json());
}

absl::StatusOr<WeightFolder> OpenSource(const ComponentSource& source, const std::string& class_name,
                                        const base::Json& config) {
  ASSIGN_OR_RETURN(std::optional<KeyMap> keys, KeyMapOf(class_name, config, source.part->form));
  if (!keys) {
    return absl::UnimplementedError(
        absl::StrCat(base::QuotePath(source.path), ": its names are not known for a ", class_name));
  }
  return WeightFolder::OpenFile(source.path, source.part->prefix, *std::move(keys), source.more);
}

absl::StatusOr<std::string> ModelFolder::Digest() const {
  base::Sha256 digest;
  digest.UpdatePart(kIndexName);
  digest.UpdatePart(index_text_);
  for (const auto& [component, unused] : index_.components) {
    std::vector<std::string> configs = {ConfigName(component)};
    // Files of different versions; pictures are prepared as one of them says.
    if (component == "processor") configs = {"preprocessor_config.json", "processor_config.json"};
    const ComponentSource source = Source(component);
    for (const std::string& config : configs) {
      const std::string shown = absl::StrCat(component, "/", config), file = ConfigPath(component, config);
      std::string text = source.config_text;
      if (!source.config) {
        if (!base::Exists(file)) continue;
        ASSIGN_OR_RETURN(text, base::ReadWholeFile(file, shown, kMaxIndexBytes));
      }
      digest.UpdatePart(shown);
      digest.UpdatePart(text);
    }
  }
  for (const auto& [component, stated] : index_.components) {
    if (!HasWeights(component)) continue;
    ASSIGN_OR_RETURN(const WeightFolder weights, Weights(component));
    digest.UpdatePart(component);
    weights.AddToDigest(digest);
  }
  return digest.Finish();
}

}  // namespace tessera::models
