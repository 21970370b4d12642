// CheckpointIndex lists a checkpoint's tensors and, for each, the boxes in which the ranks wrote it. It is stored as
// JSON in the checkpoint's folder; the ranks exchange lists of what each of them holds in the same format.
// LibTorch-free.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/weights/safetensors.h"
#include "runtime/training/checkpoints/box.h"

namespace tessera::runtime {

// A box of a tensor, and the rank whose file contains it.
struct StoredBox {
  Box box;
  int64_t rank = 0;

  auto operator<=>(const StoredBox&) const = default;
};

struct CheckpointTensor {
  models::StoredType type = models::StoredType::kF32;
  std::vector<int64_t> shape;    // of the whole tensor
  std::vector<StoredBox> boxes;  // none is empty

  bool operator==(const CheckpointTensor&) const = default;
};

struct CheckpointIndex {
  int64_t step = 0;
  int64_t ranks = 0;         // that wrote it, one file each
  std::string state = "{}";  // a JSON object of counters, the schedule and the data cursor; must be equal on all ranks
  std::map<std::string, CheckpointTensor> tensors;

  bool operator==(const CheckpointIndex&) const = default;
};

std::string IndexJson(const CheckpointIndex& index);

// Returns InvalidArgument, naming `name` and the tensor, for a syntax error, unknown or missing fields, a different
// version, a box outside its tensor, or an invalid rank. CheckCoverage checks whether the boxes cover the tensors.
absl::StatusOr<CheckpointIndex> ParseIndex(std::string_view json, const std::string& name);

// Returns InvalidArgument, naming the tensor and the boxes, unless every element of every tensor is in exactly one box.
absl::Status CheckCoverage(const CheckpointIndex& index);

// Merges the lists of what several ranks hold into one index. Of replicas (equal boxes) one rank writes: the one with
// the fewest bytes to write so far, the lowest of several. Returns InvalidArgument, naming the tensor and two ranks, if
// they disagree on a type or shape, or on the step or the state; otherwise the errors of CheckCoverage. The result is
// the same on every rank, because it depends only on the argument.
absl::StatusOr<CheckpointIndex> MergeIndexes(const std::vector<CheckpointIndex>& held);

// Returns the name of a box in its file: the tensor's name, followed by the box unless it is the whole tensor.
std::string StoredName(const std::string& tensor, const std::vector<int64_t>& shape, const Box& box);

}  // namespace tessera::runtime
