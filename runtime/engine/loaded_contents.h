// LoadedContents computes the digest of a model's files while the model is loaded.
#pragma once

#include <future>
#include <string>

#include "absl/status/statusor.h"
#include "control/model/model_description.h"
#include "models/weights/model_folder.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

class LoadedContents final {
 public:
  // Starts reading the folder's files on a thread, unless a lower rank reads the same files of the same machine.
  // `description` is of that folder. Collective; the communicator is of host memory.
  LoadedContents(const models::ModelFolder& folder, control::ModelDescription description,
                 parallel::Communicator& ranks);

  // Returns ModelContents::model; empty if another rank reads the files. Waits for the thread. Returns ABORTED if a
  // file was written or replaced since the start; other errors name the file.
  absl::StatusOr<std::string> Finish();

 private:
  const models::ModelFolder folder_;
  const control::ModelDescription description_;
  const std::string before_;                         // the identity of the files at the start
  std::future<absl::StatusOr<std::string>> digest_;  // invalid if another rank reads the files
};

}  // namespace tessera::runtime
