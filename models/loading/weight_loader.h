// Fills a component's parameters from its weight files.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "models/loading/param_table.h"
#include "models/weights/weight_folder.h"

namespace tessera::models {

// Returns the LibTorch dtype that stores the same numbers; nothing for types that LibTorch lacks or no model here uses.
std::optional<at::ScalarType> TorchType(StoredType type);

// Returns the names of the folder's tensors that the table does not use. A text encoder's file may hold the larger
// model that the encoder is a part of.
std::vector<std::string> ExtraTensors(const WeightFolder& folder, const ParamTable& table);

// Returns InvalidArgument with a list of ALL missing and misshapen tensors, followed by the extra ones. If no tensor is
// missing or misshapen, extra tensors are skipped; they are an error only if their outermost scope ("encoder" of
// "encoder.block.0.weight") is one of the table's. Reads no tensor; the table may be on the meta device.
absl::Status CheckWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component);

// Calls CheckWeights, then reads this rank's part of each tensor once, with several threads reading ahead of the
// copies. If the stored type and device are the table's, a tensor is read directly into its destination. Otherwise it
// goes through buffers; to a device, each 8 MiB is one copy, and a buffer is waited for before it is used again. fp16
// and bf16 become fp32 without rounding. Weights that the table holds in eight bits are never in memory in a wider
// type. Returns DataLoss if a file ends early.
//
// Each rank reads the files itself, even if other ranks of the host read the same ones: the first read brings the data
// from disk into the page cache, and the others copy it from there, which costs no more than copying from shared
// memory.
absl::Status LoadWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component);

// Reads `share`'s rows of each parameter into its storage, which holds these rows only. CheckWeights has returned OK
// for the whole parameters, whose shapes are in Param::spec. Otherwise like LoadWeights.
absl::Status ReadRows(const WeightFolder& folder, std::span<const Param> params, const TensorShard& share);

}  // namespace tessera::models
