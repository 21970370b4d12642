// Which bytes a model is made of, found while it is loaded.
#pragma once

#include <future>
#include <string>

#include "absl/status/statusor.h"
#include "control/model_description.h"
#include "models/weights/model_folder.h"
#include "parallel/communicator.h"

namespace tessera::runtime {

class LoadedContents final {
 public:
  // Begins to read the folder's files on a thread, unless a rank before this one reads the very same files of the same
  // machine. `description` is of that folder. Collective; the communicator is of host memory.
  LoadedContents(const models::ModelFolder& folder, control::ModelDescription description,
                 parallel::Communicator& ranks);

  // ModelContents::model; empty where another rank reads. Waits for the thread. ABORTED where a file was written or
  // replaced since the beginning; other errors name the file.
  absl::StatusOr<std::string> Finish();

 private:
  const models::ModelFolder folder_;
  const control::ModelDescription description_;
  const std::string before_;                         // the identity of the files
  std::future<absl::StatusOr<std::string>> digest_;  // invalid where another rank reads
};

}  // namespace tessera::runtime
