// Finds models in the cache of the Hugging Face hub's tools (`tessera pull`, `hf download`, diffusers):
//
//     CACHE/models--ORG--NAME/refs/main               the commit that was downloaded last
//     CACHE/models--ORG--NAME/snapshots/COMMIT/…      its files, links into ../../blobs
//
// A model's name is never used as a path: names that the hub does not allow (base/text/hub_name.h) are not looked up.
// Pure functions of the environment and the file system.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace tessera::client {

// Returns the snapshot in the cache folder `folder` that refs/main names, else the only one. `name` is the model's
// "ORG/NAME". FAILED_PRECONDITION, with the command that completes the download, if there is no such snapshot or it
// lacks its model_index.json.
absl::StatusOr<std::string> SnapshotIn(const std::string& folder, const std::string& name);

// Returns the snapshot of the model "ORG/NAME" in the cache; NOT_FOUND with the command that downloads it, or with its
// family if that cannot be run.
absl::StatusOr<std::string> FindInHubCache(const std::string& name);

// Returns "ORG/NAME" if `path` is a snapshot of a model; nullopt for any other path.
std::optional<std::string> HubNameOfSnapshot(const std::string& path);

}  // namespace tessera::client
