// Manages the folder of a run with its checkpoints: determines which of them are complete, and removes old ones.
// LibTorch-free.
//
// A checkpoint is a folder checkpoint-<step> with
//     rank-00000-of-00002.safetensors, …   what each rank wrote
//     checkpoint.json                      checkpoint_index.h
//     SHA256SUMS                           the digests of all these files, as sha256sum reads them
// The folder is created under a hidden name and renamed, so a folder with a checkpoint's name was complete and durable
// when it got the name; the digests show whether it still is. Names that begin with ".checkpoint-" were left by killed
// writers.
//
// Messages contain paths only as far as the caller gave them. Only one process at a time may change such a folder.
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

// Returns "checkpoint-200".
std::string CheckpointName(int64_t step);

// Returns "rank-00000-of-00002.safetensors".
std::string RankFileName(int64_t rank, int64_t ranks);

// The digests of files, SHA-256 in hexadecimal, by file name.
using FileDigests = std::map<std::string, std::string>;

// Reads SHA256SUMS and the index, whose digest is checked. Returns NotFound if there is no such folder; DataLoss,
// naming the file, if something is not as it was written.
absl::StatusOr<CheckpointIndex> ReadIndex(const std::string& checkpoint, FileDigests* digests = nullptr);

// Returns DataLoss unless the file of that rank has the digest that it was written with.
absl::Status VerifyRankFile(const std::string& checkpoint, int64_t rank, const CheckpointIndex& index,
                            const FileDigests& digests);

// Calls ReadIndex and then VerifyRankFile for every rank: reads the whole checkpoint.
absl::Status VerifyCheckpoint(const std::string& checkpoint);

struct FoundCheckpoint {
  std::string path;
  int64_t step = 0;
  std::vector<std::string> passed_over;  // for each newer checkpoint that is not complete, the reason
};

// Returns the checkpoint of the highest step for which VerifyCheckpoint succeeds. Returns NotFound if there is none,
// with the reason for each checkpoint.
absl::StatusOr<FoundCheckpoint> LatestWhole(const std::string& folder);

// Removes all checkpoints except those of the `count` highest steps; at least 1. A checkpoint that lacks a file, or
// whose file is truncated, does not count and is not removed before complete ones; contents are not read. Errors name
// what cannot be removed.
absl::Status KeepLast(const std::string& folder, int count);

// Whether the checkpoint is in the folder itself or in one of its branches, after symbolic links are resolved.
bool BelongsTo(const std::string& checkpoint, const std::string& folder);

// Whether the folder has checkpoints, or branches that may have some.
bool HasCheckpoints(const std::string& folder);

struct SetAside {
  std::string folder;              // "branch-1" in the run's folder; empty if nothing was moved
  std::vector<std::string> names;  // what was moved there, in descending order of steps
};

// A folder holds one line of steps. When another line begins, the results of the old line are moved into a new folder
// branch-<number> in the run's folder: checkpoints, complete or not, and exports of their steps (adapter-N,
// adapter-N.safetensors, adapter-N.kohya.safetensors, adapter-N.comfyui.safetensors, model-N). After that the
// checkpoint from which the line continues has the highest step, and the next ones are neither removed by KeepLast in
// favour of another branch nor ignored by LatestWhole.
//
// A list of what is to be moved is made durable before anything moves: after an interruption before that, the old line
// is unchanged; after a later interruption, FinishSetAside moves the rest. Returns Unavailable, naming the file, if
// something cannot be moved; ResourceExhausted, with the old line unchanged, if the list cannot be written.
//
// SetAsideAfter moves the results of steps after `step`.
absl::StatusOr<SetAside> SetAsideAfter(const std::string& folder, int64_t step);
// Moves the results of all steps, and then moves the checkpoint in HeadFolder(folder) into the folder.
absl::StatusOr<SetAside> SetAsideForHead(const std::string& folder);
// Returns the folder in which to write a checkpoint that is to start the folder's line.
std::string HeadFolder(const std::string& folder);
// Finishes an interrupted move and removes an unfinished head. The result is empty if there was neither.
absl::StatusOr<SetAside> FinishSetAside(const std::string& folder);

// Removes the files left by killed writers.
absl::Status RemoveLeftovers(const std::string& folder);

// Starts a checkpoint: removes the files left by killed writers, creates an empty folder with a hidden name for the
// checkpoint of that step, and returns its path.
absl::StatusOr<std::string> BeginCheckpoint(const std::string& folder, int64_t step);

// Returns the path that BeginCheckpoint returns.
std::string PartialCheckpoint(const std::string& folder, int64_t step);

// Completes a checkpoint: writes the index and the digests, makes the folder from BeginCheckpoint durable, and renames
// it; a checkpoint that already has the name is replaced.
absl::Status FinishCheckpoint(const std::string& folder, const CheckpointIndex& index, FileDigests digests);

// Removes the folder from BeginCheckpoint, as far as possible.
void AbandonCheckpoint(const std::string& folder, int64_t step);

}  // namespace tessera::runtime
