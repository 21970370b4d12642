// Checkpoints of a training run. Every rank writes the parts of tensors that it holds, in the coordinates of the whole
// tensors, so that ranks in any other number and layout can read them: a reader takes from every file what lies in the
// boxes it asks for. checkpoint_folder.h says what is on the disk and which checkpoint is the last whole one.
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

// A part of a tensor that this rank holds. Several parts of one tensor have one name and shape.
struct Piece {
  std::string name;            // "transformer.pos_embed.proj.weight", "exp_avg.pos_embed.proj.weight"
  std::vector<int64_t> shape;  // of the whole tensor
  Box box;                     // the part
  at::Tensor tensor;           // its elements, of the box's extent; may be a view, on any device
};

// What is not a tensor.
struct CheckpointState {
  int64_t step = 0;
  std::string json;  // an object: the optimizer's count of steps, the schedule, the data cursor
};

// Writes the checkpoint of the step into the run's folder, which is made if need be. `state` is the same on all ranks.
// Ranks that hold the same box are replicas, of which one writes. Afterwards the checkpoint is durable.
//
// InvalidArgument, naming the tensor: no rank holds some of its elements, two parts overlap without being equal, ranks
// disagree on its type or shape, `state` is no JSON object. ResourceExhausted for a full disk; then, as after every
// error, nothing of the checkpoint is left and an older one of the step is as it was, so training may go on.
absl::Status WriteCheckpoint(const std::string& folder, const CheckpointState& state, std::span<const Piece> pieces,
                             parallel::Communicator& ranks);

// The same for a checkpoint that was read from elsewhere and that the folder's line of steps is to begin with: once it
// is durable, what the folder has moves aside, as SetAsideForHead says, and it takes its place. After an error before
// that the folder is as it was. Rank 0 gets what moved.
absl::StatusOr<SetAside> WriteHead(const std::string& folder, const CheckpointState& state,
                                   std::span<const Piece> pieces, parallel::Communicator& ranks);

struct ReadCheckpointOptions {
  // Some of the checkpoint's tensors may be left unread, as by who wants its weights alone.
  bool partial = false;
};

// Fills the pieces' tensors from the checkpoint in that folder (".../checkpoint-200") after the digests of all its
// files have been checked, and returns the rest of the state.
//
// DataLoss, naming the file, if the checkpoint is not whole; InvalidArgument, naming the tensors, if it lacks one, has
// it in another shape or type, or has one that no rank asked for. After an error the tensors are of no use.
absl::StatusOr<CheckpointState> ReadCheckpoint(const std::string& checkpoint, std::span<const Piece> pieces,
                                               parallel::Communicator& ranks,
                                               const ReadCheckpointOptions& options = {});

}  // namespace tessera::runtime
