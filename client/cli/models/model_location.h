// Finds models: the embedded one, and those in folders that the user names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::client {

struct KnownModel {
  std::string name;  // the folder's name
  std::string path;
  bool embedded = false;
};

// Returns every known model folder (one with a model_index.json): the embedded model, those in $TESSERA_MODELS, those
// in `folders`, and those in the hub's cache (client/cli/models/hub_cache.h), named ORG/NAME. $TESSERA_MODELS and
// `folders` are colon-separated lists of model folders or of folders that contain some.
std::vector<KnownModel> KnownModels(const std::string& folders);

// Returns the first entry of `folders`, a colon-separated list, that is not a folder; empty if all are.
std::string MissingModelFolder(const std::string& folders);

// Returns the path of the model that the user means: a path or the name of a known model; empty: $TESSERA_MODEL, else
// the embedded one. A path may also be a models--ORG--NAME folder, which means its newest snapshot. NOT_FOUND lists the
// known names, or gives the command that downloads the model from the hub.
absl::StatusOr<std::string> FindModel(const std::string& wanted, const std::string& folders);

// Returns the name of the model at `path`: the last part of the path, or ORG/NAME for a snapshot in the hub's cache.
std::string ModelName(const std::string& path);

}  // namespace tessera::client
