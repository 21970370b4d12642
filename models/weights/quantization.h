// Quantization says how one stored weight is packed and where its scales are. In safetensors files scales, markers and
// states are separate tensors; ResolveQuantization removes them from the list of tensors and
// gives each weight its quantization. The stored forms and their sources:
//   fp8, plain            the codes alone
//   fp8, ComfyUI, older   NAME.scale_weight; a tensor "scaled_fp8" marks the file
//   fp8, int8, newer      NAME.weight_scale; the format is in NAME.comfy_quant or in the header's
//   _quantization_metadata int8, bitsandbytes    NAME.SCB, a hundred and twenty-seven times the scale of each row nf4,
//   fp4              NAME.weight.absmax and its like; the state is JSON in NAME.weight.quant_state.bitsandbytes__*
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/quantized/quant_type.h"
#include "models/weights/safetensors.h"

namespace tessera::models {

struct Quantization {
  kernels::QuantType type = kernels::QuantType::kInt8;
  // kInt8, kF8E4M3, kF8E5M2: the scale of each row of the stored tensor, or one for all of them. Empty: one.
  std::vector<float> row_scales;

  // kNibble: the values of the sixteen codes, the number of values that share a scale, and where the scales are: as
  // fp32, or as codes of `nested_table`, of which the scale is nested_table[code] * nested_scales[i / nested_block] +
  // nested_offset.
  std::vector<float> table;
  int64_t scale_block = 0;
  size_t scales_file = 0;
  StoredTensor scales;
  std::vector<float> nested_table, nested_scales;
  int64_t nested_block = 0;
  float nested_offset = 0;

  bool has_scales() const { return !kernels::HasOwnScales(type); }
};

// The name of the form for people: "fp8_e4m3", "Q4_K"; "nf4" stands for both forms of four bits of bitsandbytes.
std::string FormName(const Quantization& quantization);

// The order of a weight's rows in its file.
enum class RowOrder {
  kOwn,
  kSwappedHalves,  // the second half comes first
  kRotaryPairs,    // rows 2 i and 2 i + 1 of a head in the file are rows i and i + head_dim / 2 of the weight's head
};

// A weight as it is stored in files.
struct WeightLocation {
  size_t file = 0;
  // Its name in the file, its type there, the weight's own shape, and the range of bytes that holds it, or its first
  // part.
  StoredTensor tensor;
  // Further parts, whose rows follow, with their files.
  std::vector<std::pair<size_t, StoredTensor>> more = {};
  RowOrder order = RowOrder::kOwn;
  int64_t heads = 0;  // kRotaryPairs
  // The bytes, if they are not a range of the file's; else null.
  std::shared_ptr<const std::vector<std::byte>> content = nullptr;
  // How it is packed; null for numbers that are stored plainly. Rows are whole blocks, and the row `first_row` of the
  // stored tensor is the first one in the range. If `is_flat`, blocks run over the ends of rows, and the weight can
  // only be read as one row.
  std::shared_ptr<const Quantization> quantization = nullptr;
  int64_t first_row = 0;
  bool is_flat = false;

  int64_t rows() const { return tensor.shape.empty() ? 1 : tensor.shape[0]; }
  uint64_t bytes() const;
  // The position in the file, counted in the weight's rows, of one of them.
  int64_t StoredRow(int64_t row) const;
};

using WeightLocations = std::map<std::string, WeightLocation, std::less<>>;

// Reads a part of a tensor of one of the files.
using ReadStored =
    std::function<absl::Status(size_t file, const StoredTensor& tensor, uint64_t offset, std::span<std::byte> out)>;

// Gives the weights in `weights` their quantization and shape, and removes the tensors that only describe others.
// `metadata` holds the metadata of each file's header; `prefix` is what its names have before those in `weights`.
// Returns InvalidArgument, naming the tensor, if a scale is missing, not finite or of another shape, or if a marker or
// state is broken; Unimplemented if a form is unknown. `name` is the component's.
absl::Status ResolveQuantization(WeightLocations& weights, std::span<const std::map<std::string, std::string>> metadata,
                                 const std::string& prefix, const ReadStored& read, const std::string& name);

// The number of scales that ReadScales returns for each row of a weight of `columns` columns; 0 if its form has none.
int64_t ScalesPerRow(const WeightLocation& weight, int64_t columns);

// Fills `out`, [rows, ScalesPerRow], with the scales of rows [row, row + rows) of the weight. Of a flat weight there is
// one row. Returns the errors of reading, and InvalidArgument, naming the weight, if a scale is not finite.
absl::Status ReadScales(const WeightLocation& weight, int64_t row, int64_t rows, int64_t columns,
                        const ReadStored& read, std::span<float> out);

}  // namespace tessera::models
