// The pipelines that single files belong to, as their authors publish them, as tables. LibTorch-free.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/json/json.h"

namespace tessera::models {

struct PublishedComponent {
  std::string_view name, library, class_name;
};

struct PublishedPipeline {
  std::string_view class_name;  // _class_name of model_index.json
  std::span<const PublishedComponent> components;
  std::string_view scheduler;  // the text of scheduler_config.json
  std::string_view options;    // further members of model_index.json, each with a comma before it
  std::string_view base;       // ORG/NAME on the hub
};

// Returns the pipeline of a transformer of that class with that configuration in a file of that name. InvalidArgument,
// with a command that helps, if the name does not state which variant it is; `path` is the file.
absl::StatusOr<PublishedPipeline> PipelineOf(const std::string& class_name, const base::Json& config,
                                             const std::string& path);

// Returns the published models with components of the same classes, that of the pipeline itself first.
std::vector<std::string> SharedBases(const PublishedPipeline& pipeline);

}  // namespace tessera::models
