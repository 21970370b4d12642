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

struct SetAside {
  std::string folder;              // "branch-1" in the run's folder; empty: nothing was moved
  std::vector<std::string> names;  // what was moved there, the highest step first
};

// Moves the checkpoints of steps after `step`, whole or not, and what was exported of such steps (adapter-N,
// adapter-N.safetensors, adapter-N.kohya.safetensors, model-N) into a new folder branch-<number> in the run's folder.
// Then the checkpoint of `step` is the one of the highest step, and the next ones are neither removed by KeepLast in
// favour of another branch nor passed over by LatestWhole. Unavailable, naming the file, if something cannot be moved.
absl::StatusOr<SetAside> SetAsideAfter(const std::string& folder, int64_t step);

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
