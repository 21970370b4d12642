// ModelFolder is a model, given by the user with --model: a folder in the diffusers layout, with model_index.json and
// one folder per component (transformer, vae, text_encoder, tokenizer, scheduler, …), or the file of a transformer, to
// which the other components are found (models/weights/single_model.h). Either may have components elsewhere.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/weights/single_model.h"
#include "models/weights/weight_folder.h"

namespace tessera::control {
struct ComponentFiles;
enum class ComponentRole;
}  // namespace tessera::control

namespace tessera::models {

class LoadMeter;  // models/weights/load_meter.h

struct ComponentClass {
  std::string library;  // "diffusers", "transformers"
  std::string class_name;
  control::ComponentRole role = {};  // determined by its name in the index
};

struct ModelIndex {
  std::string class_name;                            // of the pipeline
  std::map<std::string, ComponentClass> components;  // only those that are present; names are plain folder names
  base::Json json;                                   // includes the pipeline's options
};

// Parses the text of a model_index.json. Values may be [library, class], [null, null] for an absent component, or
// anything else, which is an option of the pipeline.
absl::StatusOr<ModelIndex> ParseModelIndex(std::string_view text, const std::string& name);

// The folders and files of components that are not in the model's folder, by component.
using ComponentFolders = std::map<std::string, std::string>;

// Immutable; thread-safe. Holds no open files.
class ModelFolder {
 public:
  // Checks that every listed component has a folder or file. Errors name the path as the user gave it, or names
  // relative to it. If the path is not a model, the error says what it is and gives a command that helps. A component
  // in `elsewhere` is read from there, also if the model's folder has one; InvalidArgument if model_index.json does not
  // list it. A file elsewhere has the configuration of the model's own folder, or a derived one if there is none.
  static absl::StatusOr<ModelFolder> Open(const std::string& path, const ComponentFolders& elsewhere = {});
  // The same with components that are recognised by their contents.
  static absl::StatusOr<ModelFolder> OpenWith(const std::string& path, const control::ComponentFiles& files);

  const std::string& path() const { return path_; }
  const std::string& class_name() const { return index_.class_name; }
  const std::map<std::string, ComponentClass>& components() const { return index_.components; }
  const base::Json& index() const { return index_.json; }

  bool HasComponent(const std::string& component) const { return index_.components.contains(component); }
  // Returns the same folder without that component in its index.
  ModelFolder Without(const std::string& component) const;
  // Returns NotFound with the available components if model_index.json does not list that one.
  absl::StatusOr<std::string> ComponentPath(const std::string& component) const;
  // Where the component is, with the part of its file and a derived configuration. The component must be listed.
  ComponentSource Source(const std::string& component) const;

  // Reads the component's config.json; for schedulers scheduler_config.json and for tokenizers tokenizer_config.json.
  absl::StatusOr<base::ConfigReader> Config(const std::string& component) const;
  absl::StatusOr<WeightFolder> Weights(const std::string& component) const;
  // Whether the component has weights. A tokenizer may be in a file of weights and has none.
  bool HasWeights(const std::string& component) const;

  // Returns the same folder; what is loaded from it is reported to the meter, which is null otherwise.
  ModelFolder MeteredBy(std::shared_ptr<LoadMeter> meter) const;
  const std::shared_ptr<LoadMeter>& meter() const { return meter_; }

  // Returns the SHA-256 in hexadecimal of model_index.json, the config files and the headers of the weight files, in a
  // fixed order. It identifies the architecture and the files' layout, not the values of the weights.
  absl::StatusOr<std::string> Digest() const;

 private:
  ModelFolder(std::string path, std::string index_text, ModelIndex index)
      : path_(std::move(path)), index_text_(std::move(index_text)), index_(std::move(index)) {}

  static absl::StatusOr<ModelFolder> OpenFile(const std::string& path, const control::ComponentFiles& files);
  static absl::StatusOr<ModelFolder> OpenFolder(const std::string& path);
  // Opens the folder or file, without components elsewhere.
  static absl::StatusOr<ModelFolder> OpenAlone(const std::string& path, const control::ComponentFiles& files);
  absl::Status SetSources(const ComponentFolders& elsewhere);
  // Derives the configurations of files for which the model's folder has none.
  absl::Status DeriveMissingConfigs();
  // Returns the errors of components that are missing or whose weights are stored in a form that is not read.
  absl::Status CheckComponents() const;
  // The path of a component's configuration file. A file of weights has that of the model's own folder.
  std::string ConfigPath(const std::string& component, const std::string& name) const;

  std::string path_;
  std::string index_text_;
  ModelIndex index_;
  std::map<std::string, ComponentSource> sources_;  // of components that are not folders of `path_`
  std::shared_ptr<LoadMeter> meter_;
};

// Opens a component that is a part of a file (FileSource). `config` is the component's config.json.
absl::StatusOr<WeightFolder> OpenSource(const ComponentSource& source, const std::string& class_name,
                                        const base::Json& config);

}  // namespace tessera::models
