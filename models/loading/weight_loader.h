// Fills a component's parameters from its weight files.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/loading/param_table.h"
#include "models/weights/weight_folder.h"

namespace tessera::models {

// The type of LibTorch that stores the same numbers; nothing for the types it lacks or that no model here has.
std::optional<at::ScalarType> TorchType(StoredType type);

// The names of the folder's tensors that are nothing in the table, as where the file of a text encoder holds the larger
// model that it is a part of.
std::vector<std::string> ExtraTensors(const WeightFolder& folder, const ParamTable& table);

// InvalidArgument lists ALL tensors that are missing or misshapen, and then what is extra. Where nothing else is wrong
// what is extra is not read, and no error unless its outermost scope ("encoder" of "encoder.block.0.weight") is one of
// the table's. Reads no tensor, and the table may be on the meta device.
absl::Status CheckWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component);

// CheckWeights, and then reads of each tensor this rank's part once, several threads ahead of the copies: straight into
// its place where the stored type and device are those of the table, else through buffers, from which it goes to a
// device in one copy for each 8 MiB, with a wait for each buffer that is used again. fp16 and bf16 become fp32 without
// rounding. What the table holds in eight bits is never there in more. DataLoss when a file ends early.
//
// Every rank reads for itself what other ranks of the host read too: the first to ask brings it from the disk into the
// page cache, and the others copy it from there, which costs no more than from memory that they would share.
absl::Status LoadWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component);

}  // namespace tessera::models
