// Generates the configuration that `tessera train init` writes for one model and one folder of images: complete, with a
// comment at each setting. Pure.
#pragma once

#include <string>
#include <vector>

#include "control/training/config.h"
#include "control/training/dataset.h"

namespace tessera::control {
struct ModelDescription;
}

namespace tessera::client {

// The facts that the comments state.
struct TemplateFacts {
  const control::TrainConfig& config;  // the values to write
  const control::ModelDescription& model;
  const control::TrainingSet& images;  // the images in the configuration's folders
};

// Returns YAML that ParseTrainConfig reads as `config`.
std::string ConfigTemplate(const TemplateFacts& facts);

// Returns YAML of all keys that begins with these comments and that ParseTrainConfig reads as `config`.
std::string CommentedConfig(const control::TrainConfig& config, const std::vector<std::string>& comments);

}  // namespace tessera::client
