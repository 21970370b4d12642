// The configuration that `tessera train init` writes: complete, with a comment at each setting, for one model and one
// folder of images. Pure.
#pragma once

#include <string>

#include "control/model_description.h"
#include "control/training/config.h"
#include "control/training/dataset.h"

namespace tessera::client {

// What the comments are about.
struct TemplateFacts {
  const control::TrainConfig& config;  // the values that are written
  const control::ModelDescription& model;
  const control::TrainingSet& images;  // what the folders of the configuration hold
};

// YAML that ParseTrainConfig reads as `config`.
std::string ConfigTemplate(const TemplateFacts& facts);

}  // namespace tessera::client
