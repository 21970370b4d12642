// What a checkpoint holds: its tensors in full, and for each the boxes in which the ranks wrote it. It stands as JSON
// in the checkpoint's folder; the ranks exchange what each of them holds in the same form. Free of LibTorch.
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

// A box of a tensor and the number of the rank whose file has it.
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
  int64_t ranks = 0;         // that have written it, one file each
  std::string state = "{}";  // a JSON object: counters, the schedule and the data cursor, which no rank may merge
  std::map<std::string, CheckpointTensor> tensors;

  bool operator==(const CheckpointIndex&) const = default;
};

std::string IndexJson(const CheckpointIndex& index);

// InvalidArgument, naming `name` and the tensor: syntax, unknown or missing fields, another version, a box outside its
// tensor, the number of a rank that there is not. Whether the boxes cover the tensors CheckCoverage says.
absl::StatusOr<CheckpointIndex> ParseIndex(std::string_view json, const std::string& name);

// InvalidArgument, naming the tensor and the boxes, unless every element of every tensor is in exactly one box.
absl::Status CheckCoverage(const CheckpointIndex& index);

// One index of what several ranks hold. Of replicas, which are equal boxes, one rank writes: the one that has the
// fewest bytes to write so far, the lowest of several. InvalidArgument, naming the tensor and two ranks, if they
// disagree on a type or a shape, or on the step or the state; else as CheckCoverage. The same on every rank, since it
// depends on nothing but the argument.
absl::StatusOr<CheckpointIndex> MergeIndexes(const std::vector<CheckpointIndex>& held);

// The name of a box in its file: the tensor's, followed by the box if that is not the whole tensor.
std::string StoredName(const std::string& tensor, const std::vector<int64_t>& shape, const Box& box);

}  // namespace tessera::runtime
