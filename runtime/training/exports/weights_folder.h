// All weights of a run as a model folder that diffusers, and this server, load: the base model's folder with the
// trained transformer in place of its own.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "runtime/training/checkpoints/checkpoint_reader.h"

namespace tessera::runtime {

struct WeightsExport {
  std::string base;                     // the base model's folder
  std::string base_digest;              // of the base model, for the file's header
  std::string prediction_type;          // in place of that in the base's scheduler_config.json; empty: the same
  std::string prefix = "transformer.";  // of the weights' names in the checkpoint; "ema." takes their averages
  std::string folder;                   // to be made; nothing may have its name
};

// Reads the weights tensor by tensor from the checkpoint, whose files the caller has had verified, and writes them in
// the types in which the base has them. Tensors of the base's transformer that were not trained are the base's. The
// base's other files are copies, those of 1 MiB and more hard links where the file system allows; weights beside its
// folders, which are its own transformer once more in the form of other programs, are left out.
//
// AlreadyExists if `folder` is there; InvalidArgument, naming the tensors, if the checkpoint has one that the base has
// not or in another shape, or none at all; ResourceExhausted for a full disk. The folder gets its name when it is
// complete and durable; after an error nothing of it is left.
absl::Status ExportWeights(CheckpointReader& checkpoint, const WeightsExport& what);

}  // namespace tessera::runtime
