// CheckpointReader reads tensors of a checkpoint. It opens each file once.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/weights/safetensors.h"
#include "runtime/training/checkpoints/checkpoint.h"
#include "runtime/training/checkpoints/checkpoint_folder.h"
#include "runtime/training/checkpoints/checkpoint_index.h"

namespace tessera::runtime {

// Returns InvalidArgument, naming the tensor, unless the box is within the shape, the elements are those of the box,
// and a file can store their type.
absl::Status CheckPiece(const Piece& piece);

// Movable; one thread at a time.
class CheckpointReader {
 public:
  // Reads the index of the checkpoint in that folder, with the errors of ReadIndex. The files of tensors are not
  // checked before Verify.
  static absl::StatusOr<CheckpointReader> Open(const std::string& checkpoint);

  const CheckpointIndex& index() const { return index_; }

  // Returns DataLoss unless the file of that rank has the digest that it was written with.
  absl::Status Verify(int64_t rank) const { return VerifyRankFile(checkpoint_, rank, index_, digests_); }

  // Fills a piece from all boxes that intersect it. Returns InvalidArgument, naming the tensor, if the checkpoint lacks
  // it or has it with a different shape or type; DataLoss if a file does not agree with the index.
  absl::Status Fill(const Piece& piece);

  // Returns a whole tensor in host memory, with the errors of Fill.
  absl::StatusOr<at::Tensor> Read(const std::string& tensor);

 private:
  CheckpointReader(std::string checkpoint, CheckpointIndex index, FileDigests digests)
      : checkpoint_(std::move(checkpoint)), index_(std::move(index)), digests_(std::move(digests)) {}

  absl::StatusOr<const models::SafetensorsFile*> File(int64_t rank);
  // Copies `common` from the stored box to the piece, as many rows at a time as fit into the buffer. Whole rows are
  // read and then narrowed.
  absl::Status Copy(const Piece& piece, const StoredBox& from, const Box& common);

  std::string checkpoint_;
  CheckpointIndex index_;
  FileDigests digests_;
  std::map<int64_t, models::SafetensorsFile> files_;
};

}  // namespace tessera::runtime
