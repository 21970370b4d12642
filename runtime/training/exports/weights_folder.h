// Exports all weights of a run as a model folder that diffusers and this server load: the base model's folder with the
// trained transformer in place of its transformer.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/training/checkpoints/checkpoint_reader.h"

namespace tessera::runtime {

struct WeightsExport {
  std::string base;                     // the base model's folder
  std::string base_digest;              // of the base model, for the file's header
  std::string prediction_type;          // replaces the one in the base's scheduler_config.json; empty: unchanged
  std::string prefix = "transformer.";  // of the weights' names in the checkpoint; "ema." selects their averages
  std::string folder;                   // to be created; must not exist
};

// Reads the weights tensor by tensor from the checkpoint, whose files must have been verified, and writes them in the
// base's types. Tensors of the base's transformer that were not trained are copied from the base. The base's other
// files are copied; files of 1 MiB or more become hard links if the file system supports them. Weight files outside the
// base's component folders, which contain its transformer again in the format of other programs, are omitted.
//
// Returns AlreadyExists if `folder` exists; InvalidArgument, naming the tensors, if the checkpoint has a tensor that
// the base lacks or has with a different shape, or has none at all; ResourceExhausted for a full disk. The folder gets
// its name when it is complete and durable; after an error nothing of it is left.
absl::Status ExportWeights(CheckpointReader& checkpoint, const WeightsExport& what);

}  // namespace tessera::runtime
