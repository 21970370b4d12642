// A model made of single files: the transformer's file, and for every other component of its pipeline the part of that
// file, a file or folder that the user names, one that lies near it, or one of the hub's cache. LibTorch-free.
//
// What no file holds is published: the pipeline's components and the scheduler's configuration follow from the
// transformer's family and variant. Variants that the weights do not distinguish (Z-Image and its Turbo, klein and its
// base model, Qwen-Image and its Edit) are distinguished by the file's name.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"
#include "models/weights/file_kind.h"

namespace tessera::control {
struct ComponentFiles;
}

namespace tessera::models {

// Where one component of a model is.
struct ComponentSource {
  std::string path;                   // a folder, or a file; empty for a schedule that is a configuration alone
  std::string more = {};              // a second file of the component: the vision tower of a language model in GGUF
  std::optional<FilePart> part = {};  // of a file: the part that is the component
  std::optional<base::Json> config = {};  // present if the component has no configuration file
  std::string config_text = {};           // of `config`
};

// A component that was not found.
struct MissingPart {
  std::string component;   // "text_encoder_2"
  std::string class_name;  // "T5EncoderModel"
  std::string option;      // of the command line: "--text-encoder"
  std::string without;     // the option that runs the model without it: "--without-t5"; empty: none does
};

struct SingleModel {
  std::string index;  // the text of its model_index.json
  std::string base;   // the published model "ORG/NAME" whose other components are right for it
  std::map<std::string, ComponentSource> sources = {};  // by component
  std::vector<MissingPart> missing = {};
};

// Returns the components that a model of that pipeline does not have by `given`: T5 and its tokenizer, or none.
// InvalidArgument if the pipeline cannot run without them.
absl::StatusOr<std::vector<std::string>> LeftOut(const control::ComponentFiles& given, std::string_view pipeline);

// Returns the option that runs a model of that pipeline without the component; empty if there is none.
std::string OptionWithout(std::string_view component, std::string_view pipeline);

// Assembles the model of the transformer in `path`. Components that are nowhere are in `missing`. Returns the errors of
// ReadFileKind and CheckUsable, FailedPrecondition for a file without a transformer, and InvalidArgument for a given
// part that fits no component, for several files near it that fit one component, and if the file's name does not state
// its variant.
absl::StatusOr<SingleModel> AssembleModel(const std::string& path, const control::ComponentFiles& given);

// Returns the error for a model that lacks components: each with its option, and the command that downloads them.
absl::Status MissingPartsError(const SingleModel& model, const std::string& path);

// Returns the sources of given components for the components of a model: by component. `classes` are the model's
// components and their classes. InvalidArgument for a part that fits none or of which there are two for one.
absl::StatusOr<std::map<std::string, ComponentSource>> SourcesOf(const control::ComponentFiles& given,
                                                                 const std::map<std::string, std::string>& classes);

// Derives the configuration of a component that is a file, from the shapes of its tensors (config_from_shapes.h).
absl::Status DeriveSourceConfig(ComponentSource& source, const std::string& class_name, std::string_view pipeline,
                                std::string_view component);

// Returns the file as the source of a component: checks that it holds such a part, without a configuration. `path` must
// be a file.
absl::StatusOr<ComponentSource> FileSource(const std::string& path, const std::string& component,
                                           const std::string& class_name);

}  // namespace tessera::models
