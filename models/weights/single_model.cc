#include "models/weights/single_model.h"

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/files/file.h"
#include "base/files/hub_folders.h"
#include "base/files/path_state.h"
#include "base/json/json_writer.h"
#include "base/macros/status_macros.h"
#include "base/paths/path_text.h"
#include "control/parameters/component_files.h"
#include "models/weights/config_from_shapes.h"
#include "models/weights/published_pipelines.h"

namespace tessera::models {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxComponentConfigBytes = 16 << 20, kMaxCommitBytes = 64, kMaxFilesBeside = 500;
// ComfyUI's folders, next to that of transformers or below that of the file.
constexpr const char* kNeighbours[] = {"", "text_encoders", "clip", "vae"};

bool IsTokenizer(std::string_view component) {
  return component.starts_with("tokenizer") || component.starts_with("processor");
}

std::string OptionOf(std::string_view component) {
  if (component == "vae") return "--vae";
  return IsTokenizer(component) ? "--tokenizer" : "--text-encoder";
}

// The components that Stable Diffusion 3 can run without: in T5's place are zeros, as in diffusers.
constexpr std::string_view kSd3Pipeline = "StableDiffusion3Pipeline";
constexpr const char* kT5Parts[] = {"text_encoder_3", "tokenizer_3"};
constexpr const char* kWithoutT5 = "--without-t5";

// The width of a text encoder's states.
int64_t TextWidth(const base::Json& config) {
  const base::Json* text = config.Find("text_config");
  const base::Json& language = text == nullptr ? config : *text;
  const int64_t width = ConfigInt(language, "hidden_size");
  return width > 0 ? width : ConfigInt(language, "d_model");
}

// Whether a component with that configuration belongs to the transformer: their widths agree.
bool Fits(const base::Json& transformer, std::string_view pipeline, std::string_view component,
          const std::string& class_name, const base::Json& config) {
  if (component == "vae") {
    const int64_t latent = std::max(ConfigInt(config, "latent_channels"), ConfigInt(config, "z_dim"));
    const int64_t out = ConfigInt(transformer, "out_channels");
    if (pipeline == kSd3Pipeline || pipeline == "ZImagePipeline") {
      return latent == ConfigInt(transformer, "in_channels");
    }
    // Tokens are patches of 2 x 2. The output has no channels of conditions; Qwen-Image states it without patches.
    if (class_name == "AutoencoderKLQwenImage") return latent == out;
    return latent * 4 == (out > 0 ? out : ConfigInt(transformer, "in_channels"));
  }
  const int64_t width = TextWidth(config);
  if (class_name.starts_with("CLIP")) {
    const int64_t pooled = ConfigInt(transformer, "pooled_projection_dim");
    if (pipeline != kSd3Pipeline) return width == pooled;
    return component == "text_encoder_2" ? 2 * width > pooled : 2 * width < pooled;  // CLIP-G is the wider one
  }
  if (transformer.Find("cap_feat_dim") != nullptr) return width == ConfigInt(transformer, "cap_feat_dim");
  const int64_t joint = ConfigInt(transformer, "joint_attention_dim");
  // FLUX.2 reads three layers of its encoder.
  return pipeline.starts_with("Flux2") ? 3 * width == joint : width == joint;
}

// Files that were looked at.
class FileKinds {
 public:
  const absl::StatusOr<FileKind>& Of(const std::string& path) {
    const auto found = kinds_.find(path);
    return found != kinds_.end() ? found->second : kinds_.emplace(path, ReadFileKind(path)).first->second;
  }

 private:
  std::map<std::string, absl::StatusOr<FileKind>> kinds_;
};

absl::StatusOr<base::Json> ReadJsonFile(const fs::path& path) {
  ASSIGN_OR_RETURN(const std::string text,
                   base::ReadWholeFile(path.string(), path.filename().string(), kMaxComponentConfigBytes));
  return base::ParseJson(text, path.filename().string());
}

// The class that a component's folder states; empty if it states none.
std::string ClassOfFolder(const fs::path& folder) {
  const absl::StatusOr<base::Json> config = ReadJsonFile(folder / "config.json");
  if (!config.ok()) return "";
  if (const base::Json* name = config->Find("_class_name"); name != nullptr && name->AsString() != nullptr) {
    return *name->AsString();
  }
  const base::Json* list = config->Find("architectures");
  if (list == nullptr || list->items().empty() || list->items()[0].AsString() == nullptr) return "";
  return *list->items()[0].AsString();
}

// Whether the folder has the files of a tokenizer of that class.
bool HasTokenizer(const fs::path& folder, std::string_view class_name) {
  const absl::StatusOr<base::Json> config = ReadJsonFile(folder / "tokenizer_config.json");
  const base::Json* stated = config.ok() ? config->Find("tokenizer_class") : nullptr;
  if (stated != nullptr && stated->AsString() != nullptr) {
    // The slow and the fast class read the same files.
    const auto stem = [](std::string_view name) { return name.substr(0, name.find("Tokenizer")); };
    const std::string_view name = *stated->AsString();
    const bool is_general = name == "TokenizersBackend" || name == "PreTrainedTokenizerFast" || name.empty();
    if (!is_general && stem(name) != stem(class_name) && class_name != "PixtralProcessor") return false;
  }
  if (class_name.ends_with("Processor") && class_name != "PixtralProcessor") {
    return base::IsFile(folder / "preprocessor_config.json") || base::IsFile(folder / "processor_config.json");
  }
  if (class_name.starts_with("CLIP")) return base::IsFile(folder / "vocab.json") && base::IsFile(folder / "merges.txt");
  if (class_name.starts_with("T5") && base::IsFile(folder / "spiece.model")) return true;
  return base::IsFile(folder / "tokenizer.json");
}

// The folder of the tokenizer within a folder that the user named; empty if it has none of that class.
std::string TokenizerIn(const fs::path& folder, const std::string& component, std::string_view class_name) {
  if (base::IsFile(folder)) {
    // No file of weights holds CLIP's tokenizer, or what a processor of pictures reads.
    if (class_name.starts_with("CLIP") || component.starts_with("processor")) return "";
    const absl::StatusOr<FileKind> kind = ReadFileKind(folder.string());
    return kind.ok() && kind->has_tokenizer ? folder.string() : "";
  }
  if (HasTokenizer(folder / component, class_name)) return (folder / component).string();
  return HasTokenizer(folder, class_name) ? folder.string() : "";
}

// The snapshot of a model in the hub's cache; empty if there is none.
std::string HubSnapshot(const std::string& name) {
  const std::string cache = base::HubCacheFolder();
  if (cache.empty()) return "";
  const fs::path folder = base::HubModelFolder(cache, name);
  const std::string text = base::ReadSmallFile((folder / "refs/main").string(), kMaxCommitBytes).value_or("");
  const std::string commit(absl::StripAsciiWhitespace(text));
  const auto is_digit = [](unsigned char c) { return absl::ascii_isxdigit(c); };
  if (commit.empty() || !std::ranges::all_of(commit, is_digit)) return "";
  return base::IsFolder(folder / "snapshots" / commit) ? (folder / "snapshots" / commit).string() : "";
}

// Whether the second CLIP of Stable Diffusion 3 is meant by a file.
bool IsSecondClip(const FilePart& part, const std::string& path, const base::Json& config) {
  const std::string name = absl::AsciiStrToLower(absl::StrCat(part.prefix, fs::path(path).filename().string()));
  for (const char* mark : {"clip_g", "clip-g", "bigg"}) {
    if (name.find(mark) != std::string::npos) return true;
  }
  for (const char* mark : {"clip_l", "clip-l"}) {
    if (name.find(mark) != std::string::npos) return false;
  }
  constexpr int64_t kBetween = 1000;  // the published widths are 768 and 1280
  return TextWidth(config) > kBetween;
}

// Whether llama.cpp keeps a part of the component in another file.
bool HasTowerElsewhere(const ComponentSource& source) {
  return source.part && source.part->form == NameForm::kLlamaCpp &&
         source.part->class_name == "Qwen2_5_VLForConditionalGeneration";
}

bool IsVisionTower(const FileKind& kind) {
  return std::ranges::any_of(kind.parts, [](const FilePart& part) { return part.class_name == kVisionTowerClass; });
}

// Searches the components of one model.
class Assembly {
 public:
  Assembly(std::string path, const PublishedPipeline& pipeline, const base::Json& transformer)
      : path_(std::move(path)), pipeline_(pipeline), transformer_(transformer) {}

  // Returns the part of a file that is the component, with its configuration; nothing if the file has none that fits.
  std::optional<ComponentSource> InFile(const std::string& file, const PublishedComponent& component) {
    const absl::StatusOr<FileKind>& kind = kinds_.Of(file);
    if (!kind.ok() || !CheckUsable(*kind, file).ok()) return std::nullopt;
    const std::string name(component.name), class_name(component.class_name);
    for (const FilePart& part : kind->parts) {
      ComponentSource source{.path = file, .part = part};
      if (!IsPartOfClass(part, class_name)) continue;
      if (!DeriveSourceConfig(source, class_name, pipeline_.class_name, name).ok()) continue;
      if (Fits(transformer_, pipeline_.class_name, name, class_name, *source.config)) return source;
    }
    return std::nullopt;
  }

  // Whether the file holds a tokenizer besides its weights.
  bool HoldsTokenizer(const std::string& file) {
    if (!base::IsFile(file)) return false;
    const absl::StatusOr<FileKind>& kind = kinds_.Of(file);
    return kind.ok() && kind->has_tokenizer;
  }

  // Returns the component near the file: in ComfyUI's folders, or as a component's folder.
  absl::StatusOr<std::optional<ComponentSource>> Beside(const PublishedComponent& component) {
    const fs::path folder = fs::path(path_).has_parent_path() ? fs::path(path_).parent_path() : fs::path(".");
    for (const fs::path& root : {folder, folder / ".."}) {
      if (auto source = InFolder(root / component.name, component)) return source;
    }
    if (IsTokenizer(component.name)) return std::nullopt;
    std::map<std::string, ComponentSource> found;  // by canonical path
    for (const fs::path& root : {folder, folder / ".."}) {
      for (const char* neighbour : kNeighbours) {
        if (root != folder && *neighbour == '\0') continue;
        for (const fs::path& file : FilesIn(root / neighbour)) {
          std::error_code error;
          const std::string canonical = fs::canonical(file, error).string();
          if (error || found.contains(canonical) || fs::equivalent(file, path_, error)) continue;
          if (auto source = InFile(file.lexically_normal().string(), component)) found.emplace(canonical, *source);
        }
      }
    }
    if (found.empty()) return std::nullopt;
    if (found.size() > 1) {
      const std::string& first = found.begin()->second.path;
      return absl::InvalidArgumentError(absl::StrCat(
          found.size(), " files beside ", base::QuotePath(path_), " can be its ", std::string(component.name),
          ", for example ", base::QuotePath(first), " and ", base::QuotePath(std::next(found.begin())->second.path),
          "; name one with: ", OptionOf(component.name), " ", base::ShellWord(first)));
    }
    ComponentSource source = found.begin()->second;
    if (HasTowerElsewhere(source)) source.more = TowerBeside(folder);
    if (!source.more.empty()) {
      RETURN_IF_ERROR(
          DeriveSourceConfig(source, std::string(component.class_name), pipeline_.class_name, component.name));
    }
    return source;
  }

  // Returns the component in the hub's cache, of the published model or of one with the same components.
  std::optional<ComponentSource> InCache(const PublishedComponent& component) {
    for (const std::string& name : SharedBases(pipeline_)) {
      const std::string snapshot = HubSnapshot(name);
      if (snapshot.empty()) continue;
      if (auto source = InFolder(fs::path(snapshot) / component.name, component)) return source;
    }
    return std::nullopt;
  }

 private:
  // Returns the only file with a vision tower in ComfyUI's folders; empty if there is none or there are several.
  std::string TowerBeside(const fs::path& folder) {
    std::set<std::string> towers;
    for (const fs::path& root : {folder, folder / ".."}) {
      for (const char* neighbour : kNeighbours) {
        for (const fs::path& file : FilesIn(root / neighbour)) {
          const std::string path = file.lexically_normal().string();
          const absl::StatusOr<FileKind>& kind = kinds_.Of(path);
          if (kind.ok() && IsVisionTower(*kind)) towers.insert(path);
        }
      }
    }
    return towers.size() == 1 ? *towers.begin() : "";
  }

  static std::vector<fs::path> FilesIn(const fs::path& folder) {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      if (files.size() < kMaxFilesBeside && IsCheckpointName(entry->path().string()) && base::IsFile(entry->path())) {
        files.push_back(entry->path());
      }
    }
    std::ranges::sort(files);
    return files;
  }

  // Returns the folder as the source of the component if it has its files.
  std::optional<ComponentSource> InFolder(const fs::path& folder, const PublishedComponent& component) const {
    if (!base::IsFolder(folder)) return std::nullopt;
    const std::string path = folder.lexically_normal().string();
    if (IsTokenizer(component.name)) {
      return HasTokenizer(folder, component.class_name) ? std::optional(ComponentSource{.path = path}) : std::nullopt;
    }
    const absl::StatusOr<base::Json> config = ReadJsonFile(folder / "config.json");
    if (!config.ok() || !HasAnyWeights(folder)) return std::nullopt;
    const std::string name(component.name), class_name(component.class_name);
    if (!Fits(transformer_, pipeline_.class_name, name, class_name, *config)) return std::nullopt;
    return ComponentSource{.path = path};
  }

  static bool HasAnyWeights(const fs::path& folder) {
    return std::ranges::any_of(FilesIn(folder),
                               [](const fs::path& file) { return file.extension() == ".safetensors"; });
  }

  const std::string path_;
  const PublishedPipeline& pipeline_;
  const base::Json& transformer_;
  FileKinds kinds_;
};

// Returns the text of model_index.json.
std::string IndexText(const PublishedPipeline& pipeline, const std::vector<PublishedComponent>& components) {
  base::JsonWriter writer;
  writer.BeginObject().Key("_class_name").String(pipeline.class_name);
  for (const PublishedComponent& component : components) {
    writer.Key(component.name).BeginArray().String(component.library).String(component.class_name).EndArray();
  }
  writer.EndObject();
  std::string text = writer.text();
  text.insert(text.size() - 1, pipeline.options);
  return text;
}

// Adds the sources of a file or folder with text encoders.
absl::Status AddTextEncoders(const std::string& path, const std::map<std::string, std::string>& classes,
                             std::map<std::string, ComponentSource>& sources) {
  const auto is_open = [&](const std::string& component) {
    return component.starts_with("text_encoder") && !sources.contains(component);
  };
  size_t used = 0;
  if (base::IsFolder(path)) {
    const std::string stated = ClassOfFolder(path);
    for (const auto& [component, class_name] : classes) {
      if (used > 0 || !is_open(component) || !IsSameWeights(stated, class_name)) continue;
      sources[component] = {.path = path};
      ++used;
    }
  } else {
    ASSIGN_OR_RETURN(const FileKind kind, ReadFileKind(path));
    RETURN_IF_ERROR(CheckUsable(kind, path));
    for (const FilePart& part : kind.parts) {
      std::vector<std::string> fitting;
      for (const auto& [component, class_name] : classes) {
        if (is_open(component) && IsPartOfClass(part, class_name)) fitting.push_back(component);
      }
      if (fitting.empty()) continue;
      ComponentSource source{.path = path, .part = part};
      const bool is_pair = std::ranges::count_if(classes, [](const auto& entry) {
                             return entry.second == "CLIPTextModelWithProjection";
                           }) > 1;
      std::string component = fitting.front();
      if (part.class_name == "CLIPTextModel" && is_pair) {
        RETURN_IF_ERROR(DeriveSourceConfig(source, part.class_name, "", component));
        const char* const wanted = IsSecondClip(part, path, *source.config) ? "text_encoder_2" : "text_encoder";
        source.config.reset();
        if (std::ranges::find(fitting, wanted) == fitting.end()) continue;
        component = wanted;
      }
      sources[component] = std::move(source);
      ++used;
    }
  }
  if (used > 0) return absl::OkStatus();
  std::vector<std::string> needed;
  for (const auto& [component, class_name] : classes) {
    if (component.starts_with("text_encoder")) needed.push_back(absl::StrCat(component, " (", class_name, ")"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      base::QuotePath(path), " is no text encoder of this model",
      needed.empty() ? "" : absl::StrCat(", which needs ", absl::StrJoin(needed, ", ")),
      ", or another file is given for the same; see what it holds with: tessera inspect ", base::ShellWord(path)));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> LeftOut(const control::ComponentFiles& given, std::string_view pipeline) {
  if (!given.without_t5) return std::vector<std::string>();
  if (pipeline != kSd3Pipeline) {
    return absl::InvalidArgumentError(absl::StrCat("a model of the pipeline ", std::string(pipeline),
                                                   " cannot run without T5, as only Stable Diffusion 3 can; leave out ",
                                                   kWithoutT5));
  }
  return std::vector<std::string>(std::begin(kT5Parts), std::end(kT5Parts));
}

std::string OptionWithout(std::string_view component, std::string_view pipeline) {
  return pipeline == kSd3Pipeline && std::ranges::find(kT5Parts, component) != std::end(kT5Parts) ? kWithoutT5 : "";
}

absl::Status DeriveSourceConfig(ComponentSource& source, const std::string& class_name, std::string_view pipeline,
                                std::string_view component) {
  ASSIGN_OR_RETURN(TensorShapes shapes, ReadShapes(source.path, *source.part));
  if (!source.more.empty()) {
    ASSIGN_OR_RETURN(TensorShapes others, ReadShapes(source.more, FilePart{}));
    shapes.merge(others);
  }
  absl::StatusOr<std::string> text = DeriveConfig(class_name, shapes, source.part->form, pipeline, component);
  if (!text.ok()) {
    return absl::Status(text.status().code(),
                        absl::StrCat(base::QuotePath(source.path), ": ", std::string(text.status().message()),
                                     "; see what the file holds with: tessera inspect ", base::ShellWord(source.path)));
  }
  ASSIGN_OR_RETURN(source.config, base::ParseJson(*text, "configuration"));
  source.config_text = *std::move(text);
  return absl::OkStatus();
}

absl::StatusOr<ComponentSource> FileSource(const std::string& path, const std::string& component,
                                           const std::string& class_name) {
  ASSIGN_OR_RETURN(const FileKind kind, ReadFileKind(path));
  ASSIGN_OR_RETURN(FilePart part, PartFor(kind, path, component, class_name));
  return ComponentSource{.path = path, .part = std::move(part)};
}

absl::StatusOr<std::map<std::string, ComponentSource>> SourcesOf(const control::ComponentFiles& given,
                                                                 const std::map<std::string, std::string>& classes) {
  std::map<std::string, ComponentSource> sources;
  std::string tower;
  for (const std::string& path : given.text_encoders) {
    const absl::StatusOr<FileKind> kind = base::IsFile(path) ? ReadFileKind(path) : FileKind{};
    if (kind.ok() && IsVisionTower(*kind)) {
      tower = path;
      continue;
    }
    RETURN_IF_ERROR(AddTextEncoders(path, classes, sources));
  }
  if (!tower.empty()) {
    const auto encoder =
        std::ranges::find_if(sources, [](const auto& entry) { return HasTowerElsewhere(entry.second); });
    if (encoder == sources.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(base::QuotePath(tower), " holds ", std::string(kVisionTowerClass),
                       "; name the GGUF file of its language model as well: --text-encoder FILE"));
    }
    encoder->second.more = tower;
  }
  if (!given.autoencoder.empty()) {
    const auto vae = classes.find("vae");
    if (vae == classes.end())
      return absl::InvalidArgumentError("the model has no autoencoder that --vae could replace");
    if (base::IsFolder(given.autoencoder)) {
      sources["vae"] = {.path = given.autoencoder};
    } else {
      ASSIGN_OR_RETURN(sources["vae"], FileSource(given.autoencoder, "vae", vae->second));
    }
  }
  if (!given.tokenizer.empty()) {
    size_t used = 0;
    for (const auto& [component, class_name] : classes) {
      if (!IsTokenizer(component)) continue;
      const std::string folder = TokenizerIn(given.tokenizer, component, class_name);
      if (folder.empty()) continue;
      sources[component] = {.path = folder};
      ++used;
    }
    if (used == 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          base::QuotePath(given.tokenizer),
          " holds no tokenizer of this model; valid is a folder with a tokenizer.json, with a "
          "vocab.json and a merges.txt, or with a spiece.model, or a file of weights that holds a tokenizer"));
    }
  }
  return sources;
}

absl::StatusOr<SingleModel> AssembleModel(const std::string& path, const control::ComponentFiles& given) {
  ASSIGN_OR_RETURN(const FileKind kind, ReadFileKind(path));
  RETURN_IF_ERROR(CheckUsable(kind, path));
  const auto transformer = std::ranges::find(kind.parts, PartRole::kTransformer, &FilePart::role);
  if (transformer == kind.parts.end()) return PartFor(kind, path, "transformer", "").status();
  ComponentSource source{.path = path, .part = *transformer};
  RETURN_IF_ERROR(DeriveSourceConfig(source, transformer->class_name, "", "transformer"));
  const base::Json config = *source.config;
  ASSIGN_OR_RETURN(const PublishedPipeline pipeline, PipelineOf(transformer->class_name, config, path));

  ASSIGN_OR_RETURN(const std::vector<std::string> left_out, LeftOut(given, pipeline.class_name));
  std::vector<PublishedComponent> components;
  std::map<std::string, std::string> classes;
  for (const PublishedComponent& component : pipeline.components) {
    if (std::ranges::find(left_out, component.name) != left_out.end()) continue;
    components.push_back(component);
    if (component.name != "transformer") classes.emplace(component.name, component.class_name);
  }
  SingleModel model{.index = IndexText(pipeline, components), .base = std::string(pipeline.base)};
  ASSIGN_OR_RETURN(model.sources, SourcesOf(given, classes));
  for (auto& [component, part] : model.sources) {
    if (part.part) RETURN_IF_ERROR(DeriveSourceConfig(part, classes.at(component), pipeline.class_name, component));
  }
  model.sources["transformer"] = std::move(source);
  Assembly assembly(path, pipeline, config);
  for (const PublishedComponent& component : components) {
    const std::string name(component.name);
    if (model.sources.contains(name)) continue;
    if (name == "scheduler") {
      ASSIGN_OR_RETURN(base::Json scheduler, base::ParseJson(pipeline.scheduler, name));
      model.sources[name] = {
          .path = "", .config = std::move(scheduler), .config_text = std::string(pipeline.scheduler)};
      continue;
    }
    std::optional<ComponentSource> found;
    if (!IsTokenizer(name)) found = assembly.InFile(path, component);
    if (!found) {
      ASSIGN_OR_RETURN(found, assembly.Beside(component));
    }
    if (!found && name.starts_with("tokenizer")) {
      // A tokenizer may be in the file of its text encoder.
      const auto encoder =
          model.sources.find(absl::StrCat("text_encoder", name.substr(std::string_view("tokenizer").size())));
      if (encoder != model.sources.end() && assembly.HoldsTokenizer(encoder->second.path)) {
        found = ComponentSource{.path = encoder->second.path};
      }
    }
    if (!found) found = assembly.InCache(component);
    if (found) {
      model.sources[name] = *std::move(found);
    } else {
      model.missing.push_back(
          {name, std::string(component.class_name), OptionOf(name), OptionWithout(name, pipeline.class_name)});
    }
  }
  // Without its tower, a language model in GGUF reads no pictures.
  const auto encoder = model.sources.find("text_encoder");
  if (classes.contains("processor") && encoder != model.sources.end() && HasTowerElsewhere(encoder->second) &&
      encoder->second.more.empty()) {
    model.missing.push_back({"text_encoder", std::string(kVisionTowerClass), OptionOf("text_encoder"), ""});
  }
  return model;
}

absl::Status MissingPartsError(const SingleModel& model, const std::string& path) {
  std::vector<std::string> parts, names;
  for (const MissingPart& part : model.missing) {
    parts.push_back(absl::StrCat(part.component, " (", part.class_name, ", ", part.option,
                                 part.without.empty() ? "" : absl::StrCat(" or ", part.without), ")"));
    names.push_back(part.component);
  }
  return absl::NotFoundError(absl::StrCat(
      "the model of ", base::QuotePath(path), " lacks ", absl::StrJoin(parts, ", "),
      ", which are neither beside it nor in the hub's cache; name them with these options, or download them with: ",
      "tessera pull ", model.base, " --only ", absl::StrJoin(names, ",")));
}

}  // namespace tessera::models
