// The adapters that requests may name: files of one folder that the operator names, each kept by its content.
//
// FOLDER/NAME.safetensors is an adapter of the first model, FOLDER/MODEL/NAME.safetensors one of that model, and so is
// a folder of PEFT or diffusers in place of the file, FOLDER/NAME; where both are there, the file is it. One is loaded
// by copying it to KEPT/DIGEST.safetensors: from then on the operator's file may be replaced or go, and a job that was
// accepted with it, by its digest, gets those bytes all the same, also after a restart. What no job needs and nobody
// can name any more is removed. Thread-safe.
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
#include "absl/time/time.h"
#include "base/log_line.h"
#include "control/adapter_use.h"
#include "models/adapters/plan/adapter_files.h"
#include "server/api/image_service.h"

namespace tessera::server {

struct ServedAdaptersOptions {
  std::string folder;  // empty: there are none
  std::string kept;    // made if need be; several servers may share it
  // For which what nobody needs is kept all the same: requests that are on their way, other servers' jobs.
  absl::Duration grace_period = absl::Minutes(10);
  // As CheckAdapterFits, for the model of that id. Null: nothing is known of models.
  std::function<absl::StatusOr<models::AdapterOrigin>(const std::string& model, const std::string& path,
                                                      const std::string& name)>
      check;
  base::EventLog log;
};

class ServedAdapters final {
 public:
  // NOT_FOUND for a folder that is not there; as base::MakePrivateFolder for the other one.
  static absl::StatusOr<std::unique_ptr<ServedAdapters>> Open(ServedAdaptersOptions options);

  // Loads every adapter of the folder for the models, of which the first is the one of files outside of any model's
  // folder. One that cannot be loaded is logged and left out.
  void Scan(const std::vector<std::string>& models);

  using Loaded = ImageService::LoadedAdapter;
  // Loads the adapter of that name, or what the file is by now; the one of before stays what requests get until then,
  // and after an error. FAILED_PRECONDITION without a folder; INVALID_ARGUMENT for a name that is none, for one that
  // is there twice, and for a file that is no adapter of its model; NOT_FOUND with the nearest name that is there.
  absl::StatusOr<Loaded> Load(const std::string& name, const std::vector<std::string>& models);
  // No later request can name it; jobs that were accepted with it go on. NOT_FOUND with the nearest that is loaded.
  absl::Status Unload(const std::string& name);

  // Those of the model, by name.
  std::vector<ServedAdapter> Of(const std::string& model) const;

  // Tells where the bytes are that each of these was accepted with. DATA_LOSS by name for one whose bytes are gone, or
  // are not those any more. May read a file whole.
  absl::Status Locate(std::vector<control::AdapterUse>& adapters);

  // Removes the bytes that nobody can name and whose digest is not among `needed`.
  void RemoveUnused(const std::set<std::string>& needed);

 private:
  struct Found {
    std::string name, model, path;
  };

  explicit ServedAdapters(ServedAdaptersOptions options) : options_(std::move(options)) {}

  std::string KeptPath(const std::string& digest) const;
  std::vector<Found> FindFiles(const std::vector<std::string>& models) const;
  // `is_new`: its bytes are most likely not kept yet, so that they are copied while they are read.
  absl::StatusOr<ServedAdapter> Keep(const Found& found, bool is_new);
  absl::Status CheckKept(const std::string& digest, const std::string& path);

  const ServedAdaptersOptions options_;
  std::mutex loading_;  // held while files are read; before the other one
  mutable std::mutex mutex_;
  std::map<std::string, Loaded> loaded_;  // by name; guarded by mutex_
  std::set<std::string> verified_;        // digests of kept files that this process has read whole; guarded by mutex_
};

}  // namespace tessera::server
