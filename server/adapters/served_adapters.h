// ServedAdapters holds the adapters that requests may name: files of one folder that the operator names, each stored by
// its content.
//
// FOLDER/NAME.safetensors is an adapter of the first model, FOLDER/MODEL/NAME.safetensors one of that model. A folder
// of PEFT or diffusers, FOLDER/NAME, may take the place of the file; if both exist, the file is used. Loading an
// adapter puts its bytes into the content store. From then on the operator's file may be replaced or removed: a job
// that was accepted with its digest still gets those bytes, also after a restart. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/log/log_line.h"
#include "models/adapters/plan/adapter_files.h"
#include "server/api/served_model.h"
#include "server/content/content_store.h"

namespace tessera::control {
struct AdapterUse;
}

namespace tessera::server {

struct ServedAdaptersOptions {
  std::string folder;  // empty: there are no adapters
  // CheckAdapterFits for the model of that id. Null: no check.
  std::function<absl::StatusOr<models::AdapterOrigin>(const std::string& model, const std::string& path,
                                                      const std::string& name)>
      check;
  base::EventLog log;
};

class ServedAdapters final {
 public:
  // NOT_FOUND if the folder does not exist. The store must outlive this object.
  static absl::StatusOr<std::unique_ptr<ServedAdapters>> Open(ServedAdaptersOptions options, ContentStore& contents);

  // Loads every adapter of the folder for the models; files outside of any model's folder belong to the first model. An
  // adapter that cannot be loaded is logged and skipped.
  void Scan(const std::vector<std::string>& models);

  using Loaded = LoadedAdapter;
  // Loads the adapter of that name with the file's current contents. Until then, and after an error, requests get the
  // previous one. FAILED_PRECONDITION: there is no folder. INVALID_ARGUMENT: the name is invalid or exists twice, or
  // the file is not an adapter of its model. NOT_FOUND with the nearest existing name.
  absl::StatusOr<Loaded> Load(const std::string& name, const std::vector<std::string>& models);
  // Later requests cannot name the adapter; jobs accepted with it continue. NOT_FOUND with the nearest loaded name.
  absl::Status Unload(const std::string& name);

  // Returns the adapters of the model, ordered by name.
  std::vector<ServedAdapter> Of(const std::string& model) const;

  // Sets each adapter's file path from the digest recorded at submission. DATA_LOSS, naming the adapter, if its bytes
  // are missing or have changed. May read a whole file.
  absl::Status Locate(std::vector<control::AdapterUse>& adapters);

  // Returns the digests of the adapters that requests can name.
  std::set<std::string> Digests() const;

 private:
  struct Found {
    std::string name, model, path;
  };

  ServedAdapters(ServedAdaptersOptions options, ContentStore& contents)
      : options_(std::move(options)), contents_(contents) {}

  std::vector<Found> FindFiles(const std::vector<std::string>& models) const;
  // `is_new`: its bytes are most likely not stored yet, so they are copied while they are read.
  absl::StatusOr<ServedAdapter> Keep(const Found& found, bool is_new);

  const ServedAdaptersOptions options_;
  ContentStore& contents_;
  std::mutex loading_;  // held while files are read; locked before mutex_
  mutable std::mutex mutex_;
  std::map<std::string, Loaded> loaded_;  // by name; guarded by mutex_
};

}  // namespace tessera::server
