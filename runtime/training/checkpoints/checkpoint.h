// Writes and reads checkpoints of a training run. Every rank writes the parts of tensors that it holds, in the
// coordinates of the whole tensors, so that any number of ranks in any layout can read them: a reader takes from every
// file what intersects the boxes it needs. checkpoint_folder.h describes the files on disk and how the last complete
// checkpoint is found.
//
// The functions are collective: all ranks of the group call them together, on a communicator of host memory, and all
// get the same status. They throw only what the communicator or LibTorch throws.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "parallel/communicator.h"
#include "runtime/training/checkpoints/box.h"
#include "runtime/training/checkpoints/checkpoint_folder.h"

namespace tessera::runtime {

// A part of a tensor that this rank holds. Several parts of one tensor have the same name and shape.
struct Piece {
  std::string name;            // "transformer.pos_embed.proj.weight", "exp_avg.pos_embed.proj.weight"
  std::vector<int64_t> shape;  // of the whole tensor
  Box box;                     // the part
  at::Tensor tensor;           // its elements, of the box's extent; may be a view, on any device
};

// The state of a run other than tensors.
struct CheckpointState {
  int64_t step = 0;
  std::string json;  // an object: the optimizer's step count, the schedule, the data cursor
};

// Writes the checkpoint of the step into the run's folder, which is created if it does not exist. `state` is the same
// on all ranks. Ranks that hold the same box are replicas, of which one writes. On success the checkpoint is durable.
//
// Returns InvalidArgument, naming the tensor, if no rank holds some of its elements, if two parts overlap without being
// equal, if ranks disagree on its type or shape, or if `state` is not a JSON object; ResourceExhausted for a full disk.
// After any error nothing of the checkpoint is left and an older checkpoint of the step is unchanged, so training may
// continue.
absl::Status WriteCheckpoint(const std::string& folder, const CheckpointState& state, std::span<const Piece> pieces,
                             parallel::Communicator& ranks);

// Like WriteCheckpoint, for a checkpoint that was read from elsewhere and is to start the folder's line of steps: once
// it is durable, the folder's contents are moved aside (SetAsideForHead) and the checkpoint takes its place. After an
// error before that, the folder is unchanged. Rank 0 gets the names of what was moved.
absl::StatusOr<SetAside> WriteHead(const std::string& folder, const CheckpointState& state,
                                   std::span<const Piece> pieces, parallel::Communicator& ranks);

struct ReadCheckpointOptions {
  // Some of the checkpoint's tensors may be left unread, for example to read only its weights.
  bool partial = false;
};

// Checks the digests of all files of the checkpoint in that folder (".../checkpoint-200"), fills the pieces' tensors
// from it, and returns the rest of the state.
//
// Returns DataLoss, naming the file, if the checkpoint is not complete; InvalidArgument, naming the tensors, if it
// lacks one, has one with a different shape or type, or has one that no rank reads. After an error the tensors'
// contents are undefined.
absl::StatusOr<CheckpointState> ReadCheckpoint(const std::string& checkpoint, std::span<const Piece> pieces,
                                               parallel::Communicator& ranks,
                                               const ReadCheckpointOptions& options = {});

}  // namespace tessera::runtime
