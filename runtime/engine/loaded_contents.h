// LoadedContents computes the digest of a model's files on a thread, while the model is loaded and makes its first
// images. A thread that computes images has the processors first.
#pragma once

#include <atomic>
#include <future>
#include <optional>
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
  // Ends the thread.
  ~LoadedContents();

  LoadedContents(const LoadedContents&) = delete;
  LoadedContents& operator=(const LoadedContents&) = delete;

  // Returns ModelContents::model; empty if another rank reads the files. Waits for the thread. Returns ABORTED if a
  // file was written or replaced since the start; other errors name the file. Later calls return the same.
  absl::StatusOr<std::string> Finish();

 private:
  absl::StatusOr<std::string> Read() const;

  const models::ModelFolder folder_;
  const control::ModelDescription description_;
  const std::string before_;  // the identity of the files at the start
  std::atomic<bool> ending_ = false;
  std::future<absl::StatusOr<std::string>> digest_;  // invalid if another rank reads the files
  std::optional<absl::StatusOr<std::string>> finished_;
};

}  // namespace tessera::runtime
