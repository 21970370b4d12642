// Where models lie: the embedded one, and those in folders that the user names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace tessera::client {

struct KnownModel {
  std::string name;  // of its folder
  std::string path;
  bool embedded = false;
};

// Every model folder (one with a model_index.json) that is known: the embedded model, those in $TESSERA_MODELS, those
// in `folders`, and those in the hub's cache (client/cli/models/hub_cache.h), whose names are ORG/NAME. The first two
// are lists separated by colons, of model folders or of folders that hold some.
std::vector<KnownModel> KnownModels(const std::string& folders);

// The first of `folders`, a list separated by colons, that is no folder; empty: there is none.
std::string MissingModelFolder(const std::string& folders);

// The path of the model that the user means: a path, or the name of a known model; empty: $TESSERA_MODEL, else the
// embedded one. models--ORG--NAME may be a path too: it stands for the newest snapshot in it. NOT_FOUND lists the known
// names, or gives the command that downloads a model of the hub.
absl::StatusOr<std::string> FindModel(const std::string& wanted, const std::string& folders);

// What to call the model at `path`: the last part of it; of a snapshot in the hub's cache ORG/NAME.
std::string ModelName(const std::string& path);

}  // namespace tessera::client
