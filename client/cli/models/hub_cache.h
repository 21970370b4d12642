// The cache in which the tools of the Hugging Face hub (`hf download`, diffusers) keep models:
//
//     CACHE/models--ORG--NAME/refs/main               the commit that was downloaded last
//     CACHE/models--ORG--NAME/snapshots/COMMIT/…      its files, links into ../../blobs
//
// A name of a model is never a path: what the hub does not allow in a name (base/hub_name.h) is not looked
// for. Pure functions of the environment and the file system.
#pragma once

#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace tessera::client {

// Of HF_HUB_CACHE, HUGGINGFACE_HUB_CACHE, HF_HOME, XDG_CACHE_HOME and HOME the first that is set says where it is;
// empty: none is.
std::string HubCacheFolder();

// The newest snapshot in `folder`, which is one of the cache's: that of refs/main, else the only one. `name` is the
// model's, "ORG/NAME". FAILED_PRECONDITION gives the command that completes a snapshot that is not there or lacks its
// model_index.json.
absl::StatusOr<std::string> SnapshotIn(const std::string& folder, const std::string& name);

// The snapshot of the model "ORG/NAME" in the cache; NOT_FOUND gives the command that downloads it.
absl::StatusOr<std::string> FindInHubCache(const std::string& name);

// "ORG/NAME" of the model whose snapshot `path` is; nothing for every other path.
std::optional<std::string> HubNameOfSnapshot(const std::string& path);

}  // namespace tessera::client
