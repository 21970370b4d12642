// Fills a component's parameters from its weight files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/loading/param_table.h"
#include "models/weights/weight_folder.h"

namespace tessera::models {

class LoadMeter;  // models/weights/load_meter.h

// Returns the LibTorch dtype that stores the same numbers; nothing for types that LibTorch lacks or no model here uses.
std::optional<at::ScalarType> TorchType(StoredType type);

// Returns `rows` rows of a packed weight, the first of them being `row`, in fp32 [rows, columns]. `bytes` are theirs;
// of a flat weight all rows are needed. Returns the errors of WeightFolder::ReadScales.
absl::StatusOr<at::Tensor> WidenedRows(const WeightFolder& folder, const WeightLocation& location, int64_t row,
                                       int64_t rows, const std::byte* bytes);

// Translates the names of a single file to those of the table's parameters, which must be the whole component's.
// Returns the errors of WeightFolder::Name. Nothing happens to a folder whose names are those already.
absl::Status NameWeights(WeightFolder& folder, const ParamTable& table);

// Returns the form in which a stored product stays in memory: as it is stored if rows are whole blocks; nothing if it
// is plain. For ParamTable; `folder` outlives the function.
ParamTable::FormOf StoredForms(const WeightFolder& folder);

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
// and bf16 become fp32 without rounding. Quantized weights stay as they are stored where the table has the same form,
// and are otherwise widened to fp32 and rounded once, 8 MiB of their bytes at a time. Returns DataLoss if a file ends
// early, and InvalidArgument, naming the tensor, if a number is not finite.
//
// Each rank reads the files itself, even if other ranks of the host read the same ones: the first read brings the data
// from disk into the page cache, and the others copy it from there, which costs no more than copying from shared
// memory.
//
// `meter`, unless it is null, gets what has been read of the component.
absl::Status LoadWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component,
                         LoadMeter* meter = nullptr);

// Calls CheckWeights and LoadWeights for a table in the host's memory that is not trained, but defers the weights of
// products (ParamTable::DeferProducts): of these only the numbers are checked, and scales are read. Until all of them
// are used, the folder's files stay open, and a file that was written to since is a WeightReadError of the use.
// PackForInference must follow.
absl::Status LoadDeferred(std::shared_ptr<const WeightFolder> folder, ParamTable& table, const std::string& component,
                          LoadMeter* meter = nullptr);

// Called on the loading thread with the bytes of this rank's part of a component that have been read, and with all of
// its bytes.
using ReadReport = std::function<void(uint64_t done, uint64_t whole)>;

// Returns null's or the meter's report of a component. The meter outlives it.
ReadReport ReportTo(LoadMeter* meter, const std::string& component);

// Reads `share`'s rows of each parameter into its storage, which holds these rows only. CheckWeights has returned OK
// for the whole parameters, whose shapes are in Param::spec; `dtype` is the model's. Otherwise like LoadWeights.
absl::Status ReadRows(const WeightFolder& folder, std::span<const Param> params, const TensorShard& share,
                      at::ScalarType dtype, const ReadReport& report = {});

}  // namespace tessera::models
