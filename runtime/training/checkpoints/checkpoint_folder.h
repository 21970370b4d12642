// The folder of a run with its checkpoints: which of them are whole, which may go. Free of LibTorch.
//
// A checkpoint is a folder checkpoint-<step> with
//     rank-00000-of-00002.safetensors, …   what each rank wrote
//     checkpoint.json                      checkpoint_index.h
//     SHA256SUMS                           the digests of all these files, as sha256sum reads them
// It is made under a hidden name and moved, so that a folder of its name was once complete and durable; the digests say
// whether it still is. Names that begin with ".checkpoint-" are leftovers of killed writers.
//
// Paths appear in messages only as far as the caller gave them. One process at a time changes such a folder.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/training/checkpoints/checkpoint_index.h"

namespace tessera::runtime {

// "checkpoint-200"
std::string CheckpointName(int64_t step);

// "rank-00000-of-00002.safetensors"
std::string RankFileName(int64_t rank, int64_t ranks);

// The digests of files, SHA-256 in hexadecimal, by their names.
using FileDigests = std::map<std::string, std::string>;

// Reads SHA256SUMS and the index, whose digest is checked. NotFound if there is no such folder; DataLoss, naming the
// file, for whatever is not as it was written.
absl::StatusOr<CheckpointIndex> ReadIndex(const std::string& checkpoint, FileDigests* digests = nullptr);

// DataLoss unless the file of that rank has the digest it was written with.
absl::Status VerifyRankFile(const std::string& checkpoint, int64_t rank, const CheckpointIndex& index,
                            const FileDigests& digests);

// ReadIndex, and then VerifyRankFile of every rank: reads all of the checkpoint.
absl::Status VerifyCheckpoint(const std::string& checkpoint);

struct FoundCheckpoint {
  std::string path;
  int64_t step = 0;
  std::vector<std::string> passed_over;  // of each newer checkpoint that is not whole, why
};

// The checkpoint of the highest step that is whole by VerifyCheckpoint. NotFound if there is none; the message then
// says of each why it is not.
absl::StatusOr<FoundCheckpoint> LatestWhole(const std::string& folder);

// Removes all checkpoints but the `count` of the highest steps, at least 1. A checkpoint that has lost a file, or the
// end of one, neither counts nor is removed before whole ones are; contents are not read. Errors name what cannot be
// removed.
absl::Status KeepLast(const std::string& folder, int count);

// Whether the checkpoint is in the folder itself or in one of its branches, by what the paths lead to.
bool BelongsTo(const std::string& checkpoint, const std::string& folder);

// Whether the folder has checkpoints, or branches that may have some.
bool HasCheckpoints(const std::string& folder);

struct SetAside {
  std::string folder;              // "branch-1" in the run's folder; empty: nothing was moved
  std::vector<std::string> names;  // what was moved there, the highest step first
};

// A folder holds one line of steps. Where another one begins, what is of the old one moves into a new folder
// branch-<number> in the run's folder: checkpoints, whole or not, and what was exported of their steps (adapter-N,
// adapter-N.safetensors, adapter-N.kohya.safetensors, model-N). Then the checkpoint from which the line goes on is the
// one of the highest step, and the next ones are neither removed by KeepLast in favour of another branch nor passed
// over by LatestWhole.
//
// What is to be moved is written down durably before anything moves: after an interruption before that the old line is
// as it was, after a later one FinishSetAside moves the rest. Unavailable, naming the file, if something cannot be
// moved; ResourceExhausted, with the old line as it was, if the list cannot be written.
//
// Moves what is of steps after `step`.
absl::StatusOr<SetAside> SetAsideAfter(const std::string& folder, int64_t step);
// Moves what is of any step, and then the checkpoint in HeadFolder(folder) into the folder.
absl::StatusOr<SetAside> SetAsideForHead(const std::string& folder);
// Where a checkpoint is written that the folder's line is to begin with.
std::string HeadFolder(const std::string& folder);
// Finishes what was interrupted. Removes a head that was not finished. Empty where there was neither.
absl::StatusOr<SetAside> FinishSetAside(const std::string& folder);

// Removes what killed writers left behind.
absl::Status RemoveLeftovers(const std::string& folder);

// The writer's half. Removes what killed writers left behind, makes an empty folder under a hidden name for the
// checkpoint of that step, and returns its path.
absl::StatusOr<std::string> BeginCheckpoint(const std::string& folder, int64_t step);

// The path that BeginCheckpoint returns.
std::string PartialCheckpoint(const std::string& folder, int64_t step);

// Writes index and digests, makes the folder that BeginCheckpoint made durable, and gives it its name; a checkpoint
// that already has it is replaced.
absl::Status FinishCheckpoint(const std::string& folder, const CheckpointIndex& index, FileDigests digests);

// Removes what BeginCheckpoint made, as far as that can be done.
void AbandonCheckpoint(const std::string& folder, int64_t step);

}  // namespace tessera::runtime
