// StandInTextEncoder completes a pipeline of FLUX.2 dev whose folder has no text encoder. The goldens of such a
// pipeline record the embeddings of their prompts, but the family reads the configuration of an encoder and encodes
// every prompt. The stand-in is an encoder of the class, depth and width that the transformer expects, with weights of
// zero, and a tokenizer to which every character is unknown. Its states have the right shape, and the runner replaces
// them by the recorded ones.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "models/weights/model_folder.h"

namespace tessera::golden {

// Immutable. Owns a temporary folder, which its destructor removes.
class StandInTextEncoder final {
 public:
  // Writes a stand-in for the pipeline's text encoder. Returns null if the pipeline is of another class or has a text
  // encoder, and the errors of reading its transformer's configuration and of writing files.
  static absl::StatusOr<std::unique_ptr<StandInTextEncoder>> MakeIfMissing(const models::ModelFolder& pipeline);

  ~StandInTextEncoder();
  StandInTextEncoder(const StandInTextEncoder&) = delete;
  StandInTextEncoder& operator=(const StandInTextEncoder&) = delete;

  // Opens the pipeline with the stand-in in place of the missing components.
  absl::StatusOr<models::ModelFolder> Open(const models::ModelFolder& pipeline) const;

 private:
  explicit StandInTextEncoder(std::string path) : path_(std::move(path)) {}

  std::string path_;
};

}  // namespace tessera::golden
