// ModelCache writes one model into the cache of the hub's tools (client/cli/models/hub_cache.h):
//
//     CACHE/models--ORG--NAME/blobs/DIGEST            the bytes of a file
//     CACHE/models--ORG--NAME/snapshots/COMMIT/PATH   a link to its blob
//     CACHE/models--ORG--NAME/refs/REVISION           the commit of a branch or tag
//     CACHE/.locks/models--ORG--NAME/tessera.lock     excludes other downloads of Tessera
#pragma once

#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/process_lock.h"
#include "client/cli/pull/hub_requests.h"

namespace tessera::client {

class ModelCache {
 public:
  // Creates the model's folder and waits until no other process downloads the model. `name` is ORG/NAME.
  static absl::StatusOr<ModelCache> Open(const std::string& cache, const std::string& name, const PullHooks& hooks);

  std::string blobs() const { return folder_ + "/blobs"; }
  std::string Snapshot(const std::string& commit) const { return folder_ + "/snapshots/" + commit; }

  // Links every file of the commit to its blob, model_index.json last: without it a snapshot is no model. No folder in
  // the snapshot may be a link.
  absl::Status Link(const std::string& commit, const std::map<std::string, std::string>& blob_names) const;

  // Records the commit of a branch or tag.
  absl::Status SetRef(const std::string& revision, const std::string& commit) const;

 private:
  ModelCache(const std::string& folder, base::ProcessLock lock) : folder_(folder), lock_(std::move(lock)) {}

  std::string folder_;
  base::ProcessLock lock_;
};

}  // namespace tessera::client
