#include "models/weights/quantization.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/json.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "models/weights/stored_types.h"

namespace tessera::models {
namespace {

using kernels::QuantType;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kStates[] = {".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"};
// Tensors that describe NAME.weight, by the end of their names: NAME with each of these.
constexpr std::string_view kBeside[] = {".scale_weight", ".weight_scale", ".scale_input",   ".input_scale",
                                        ".comfy_quant",  ".SCB",          ".weight_format", ".weight_scale_2"};
// Tensors of the weight itself: NAME.weight with each of these.
constexpr std::string_view kOfWeight[] = {".absmax",           ".quant_map", ".nested_absmax",
                                          ".nested_quant_map", kStates[0],   kStates[1]};
constexpr std::string_view kFileMarker = "scaled_fp8";
constexpr char kHeaderList[] = "_quantization_metadata";
constexpr uint64_t kMaxTextBytes = 1 << 16;
constexpr int64_t kMaxScaleBlock = 1 << 16;

// The tensors of one component while their quantization is resolved.
class Resolver {
 public:
  Resolver(WeightLocations& weights, std::span<const std::map<std::string, std::string>> metadata,
           const std::string& prefix, const ReadStored& read, const std::string& name)
      : weights_(weights), metadata_(metadata), prefix_(prefix), read_(read), name_(name) {}

  absl::Status Resolve() {
    RETURN_IF_ERROR(ReadHeaderLists());
    std::vector<std::string> names;
    for (const auto& [name, weight] : weights_) names.push_back(name);
    for (const std::string& name : names) {
      const auto found = weights_.find(name);
      if (found == weights_.end() || Describes(name)) continue;
      RETURN_IF_ERROR(ResolveOne(found->second, name));
    }
    for (const auto& [layer, format] : listed_) {
      if (!weights_.contains(layer + std::string(kWeight))) {
        return Broken(absl::StrCat(kHeaderList, " lists the layer ", base::Quote(layer), ", which has no weight"));
      }
    }
    // What describes a tensor that is there has been used.
    for (const std::string& name : names) {
      if (Describes(name)) weights_.erase(name);
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Broken(const std::string& text) const { return absl::InvalidArgumentError(name_ + ": " + text); }

  // Returns the name of the weight that the tensor of this name describes, if there is such a weight.
  std::optional<std::string> DescribedBy(std::string_view name) const {
    const auto weight_of = [&](std::string_view end, std::string_view weight) -> std::optional<std::string> {
      if (!name.ends_with(end)) return std::nullopt;
      std::string described = std::string(name.substr(0, name.size() - end.size())).append(weight);
      return weights_.contains(described) ? std::optional(std::move(described)) : std::nullopt;
    };
    for (const std::string_view end : kBeside) {
      if (auto described = weight_of(end, kWeight)) return described;
    }
    for (const std::string_view end : kOfWeight) {
      if (auto described = weight_of(end, "")) return described;
    }
    return std::nullopt;
  }
  bool Describes(std::string_view name) const { return name == kFileMarker || DescribedBy(name).has_value(); }

  const WeightLocation* Find(std::string_view name) const {
    const auto found = weights_.find(name);
    return found == weights_.end() ? nullptr : &found->second;
  }

  absl::StatusOr<std::vector<std::byte>> Bytes(const WeightLocation& location) const {
    std::vector<std::byte> bytes(location.tensor.bytes());
    RETURN_IF_ERROR(read_(location.file, location.tensor, 0, bytes));
    return bytes;
  }

  // Returns the finite numbers of a small tensor of a floating-point type.
  absl::StatusOr<std::vector<float>> Numbers(const std::string& name, const WeightLocation& location) const {
    const StoredType type = location.tensor.type;
    if (!IsFloating(type)) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " is stored as ", StoredTypeName(type),
                                 "; it must be F32, F16, BF16 or F64"));
    }
    const auto size = static_cast<size_t>(StoredTypeSize(type));
    std::vector<float> numbers(static_cast<size_t>(location.tensor.elements()));
    ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, Bytes(location));
    for (size_t i = 0; i < numbers.size(); ++i) {
      uint64_t bits = 0;
      std::memcpy(&bits, bytes.data() + i * size, size);
      numbers[i] = static_cast<float>(FloatingNumber(type, bits));
      if (!std::isfinite(numbers[i])) {
        return Broken(absl::StrCat("tensor ", base::Quote(name), " has a value that is not finite"));
      }
    }
    return numbers;
  }

  // Returns the JSON object that a tensor of bytes holds.
  absl::StatusOr<base::Json> JsonOf(const std::string& name, const WeightLocation& location) const {
    if (location.tensor.type != StoredType::kU8 || location.tensor.bytes() > kMaxTextBytes) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " must be a text in U8"));
    }
    ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, Bytes(location));
    absl::StatusOr<base::Json> json = base::ParseJson(
        std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()), absl::StrCat(name_, ": ", name));
    if (json.ok() && !json->is_object()) return Broken(absl::StrCat("tensor ", base::Quote(name), " is not an object"));
    return json;
  }

  absl::Status ReadHeaderLists() {
    for (const std::map<std::string, std::string>& metadata : metadata_) {
      const auto found = metadata.find(kHeaderList);
      if (found == metadata.end()) continue;
      ASSIGN_OR_RETURN(const base::Json json, base::ParseJson(found->second, absl::StrCat(name_, ": ", kHeaderList)));
      const base::Json* layers = json.Find("layers");
      if (layers == nullptr || !layers->is_object()) {
        return Broken(absl::StrCat(kHeaderList, " has no object \"layers\""));
      }
      for (const base::JsonMember& layer : layers->members()) {
        if (!layer.key.starts_with(prefix_)) continue;  // of another component
        RETURN_IF_ERROR(CheckFormat(layer.value, absl::StrCat(kHeaderList, " of ", base::Quote(layer.key))));
        listed_.emplace(layer.key.substr(prefix_.size()), *layer.value.Find("format")->AsString());
      }
    }
    return absl::OkStatus();
  }

  // Checks the description of a layer's format in ComfyUI's newer form.
  absl::Status CheckFormat(const base::Json& description, const std::string& where) const {
    const base::Json* format = description.Find("format");
    const std::string* text = format == nullptr ? nullptr : format->AsString();
    if (text == nullptr) return Broken(absl::StrCat(where, " names no format"));
    if (*text != "float8_e4m3fn" && *text != "float8_e5m2" && *text != "int8_tensorwise") {
      return absl::UnimplementedError(
          absl::StrCat(name_, ": ", where, " names the format ", base::Quote(*text),
                       ", which is not supported; use the file of the same model in fp8 (float8_e4m3fn) or in GGUF"));
    }
    const base::Json* rotated = description.Find("convrot");
    if (rotated != nullptr && rotated->AsBool().value_or(true)) {
      return absl::UnimplementedError(
          absl::StrCat(name_, ": ", where,
                       " names rotated weights (convrot), which are not supported; use the file of "
                       "the same model in fp8 (float8_e4m3fn) or in GGUF"));
    }
    return absl::OkStatus();
  }

  absl::Status ResolveOne(WeightLocation& weight, const std::string& name) {
    for (const std::string_view state : kStates) {
      const std::string of_state = name + std::string(state);
      if (const WeightLocation* found = Find(of_state)) return ResolveNibbles(weight, name, of_state, *found);
    }
    const bool is_weight = name.ends_with(kWeight);
    const std::string layer = is_weight ? name.substr(0, name.size() - kWeight.size()) : name;
    std::optional<std::string> format;
    if (const WeightLocation* marker = Find(layer + ".comfy_quant"); marker != nullptr && is_weight) {
      const std::string marker_name = layer + ".comfy_quant";
      ASSIGN_OR_RETURN(const base::Json json, JsonOf(marker_name, *marker));
      RETURN_IF_ERROR(CheckFormat(json, base::Quote(marker_name)));
      format = *json.Find("format")->AsString();
    } else if (const auto listed = listed_.find(layer); listed != listed_.end()) {
      format = listed->second;
    }
    const StoredType type = weight.tensor.type;
    if (Find(name + ".absmax") != nullptr || Find(name + ".quant_map") != nullptr) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " has scales of bitsandbytes and no quant_state"));
    }
    Quantization quantization;
    if (type == StoredType::kF8E4M3) {
      quantization.type = QuantType::kF8E4M3;
    } else if (type == StoredType::kF8E5M2) {
      quantization.type = QuantType::kF8E5M2;
    } else if (type == StoredType::kI8) {
      quantization.type = QuantType::kInt8;
    } else if (const std::optional<QuantType> packed = QuantTypeOf(type)) {
      quantization.type = *packed;
      return Packed(weight, name, std::move(quantization));
    } else {
      if (format) {
        return Broken(absl::StrCat("tensor ", base::Quote(name), " is stored as ", StoredTypeName(type),
                                   ", and its marker says ", *format));
      }
      return absl::OkStatus();
    }
    if (format && (*format == "int8_tensorwise") != (type == StoredType::kI8)) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " is stored as ", StoredTypeName(type),
                                 ", and its marker says ", *format));
    }
    RETURN_IF_ERROR(ReadRowScales(weight, layer, name, format.has_value(), quantization));
    return Packed(weight, name, std::move(quantization));
  }

  // Reads the scales of a weight in int8 or fp8.
  absl::Status ReadRowScales(const WeightLocation& weight, const std::string& layer, const std::string& name,
                             bool is_marked, Quantization& quantization) {
    const bool is_int8 = quantization.type == QuantType::kInt8;
    for (const std::string_view end : {".weight_scale", ".scale_weight", ".SCB"}) {
      const std::string scale = layer + std::string(end);
      const WeightLocation* found = Find(scale);
      if (found == nullptr || (end == ".SCB" && !is_int8)) continue;
      const int64_t rows = weight.tensor.shape.empty() ? 1 : weight.tensor.shape[0];
      const int64_t count = found->tensor.elements();
      const bool per_row = count == rows && !found->tensor.shape.empty() && found->tensor.shape[0] == rows;
      if (count != 1 && !per_row) {
        return Broken(absl::StrCat("tensor ", base::Quote(scale), " has the shape ", ShapeText(found->tensor.shape),
                                   "; one scale, or one for each of ", rows, " rows, is expected"));
      }
      ASSIGN_OR_RETURN(quantization.row_scales, Numbers(scale, *found));
      if (end != ".SCB") return absl::OkStatus();
      const float largest = base::Planted("int8_divided_by_128") ? 128.0f : 127.0f;
      for (float& value : quantization.row_scales) value /= largest;
      return CheckRowMajor(layer);
    }
    if (is_marked) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " is quantized, and its scale ",
                                 base::Quote(layer + ".weight_scale"), " is missing"));
    }
    if (is_int8) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " is in int8, and its scale is missing: ",
                                 base::Quote(layer + ".SCB"), " or ", base::Quote(layer + ".weight_scale")));
    }
    return absl::OkStatus();
  }

  absl::Status CheckRowMajor(const std::string& layer) const {
    const std::string format = layer + ".weight_format";
    const WeightLocation* found = Find(format);
    if (found == nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, Bytes(*found));
    if (!std::ranges::all_of(bytes, [](std::byte byte) { return byte == std::byte{0}; })) {
      return absl::UnimplementedError(
          absl::StrCat(name_, ": tensor ", base::Quote(format), " is not 0 (row-major), the only supported order"));
    }
    return absl::OkStatus();
  }

  // Checks that the weight consists of whole blocks, and stores its quantization.
  absl::Status Packed(WeightLocation& weight, const std::string& name, Quantization quantization) {
    const std::vector<int64_t>& shape = weight.tensor.shape;
    const kernels::QuantBlock block = kernels::BlockOf(quantization.type);
    const int64_t rows = shape.empty() ? 1 : shape[0];
    int64_t elements = 1;
    for (const int64_t size : shape) elements *= size;
    weight.is_flat = rows == 0 || elements / std::max<int64_t>(rows, 1) % block.values != 0;
    if (elements % block.values != 0) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " has ", elements,
                                 " values, which are no whole blocks of ", block.values));
    }
    if (static_cast<uint64_t>(elements / block.values * block.bytes) != weight.tensor.bytes()) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " has ", weight.tensor.bytes(), " bytes; ",
                                 ShapeText(shape), " in ", std::string(kernels::QuantTypeName(quantization.type)),
                                 " takes ", elements / block.values * block.bytes));
    }
    weight.quantization = std::make_shared<const Quantization>(std::move(quantization));
    return absl::OkStatus();
  }

  absl::Status ResolveNibbles(WeightLocation& weight, const std::string& name, const std::string& state_name,
                              const WeightLocation& state_location) {
    const absl::StatusOr<base::Json> json = JsonOf(state_name, state_location);
    if (!json.ok()) return json.status();
    ASSIGN_OR_RETURN(base::ConfigReader state,
                     base::ConfigReader::FromJson(*json, absl::StrCat(name_, ": ", state_name)));
    const std::vector<int64_t> shape = state.RequiredInts("shape", 0, int64_t{1} << 40);
    Quantization quantization{.type = QuantType::kNibble};
    quantization.scale_block = state.RequiredInt("blocksize", 2, kMaxScaleBlock);
    const bool is_nested = state.Has("nested_blocksize");
    if (is_nested) {
      quantization.nested_block = state.RequiredInt("nested_blocksize", 1, kMaxScaleBlock);
      quantization.nested_offset = static_cast<float>(state.Number("nested_offset", 0));
    }
    if (shape.empty() || shape.size() > 4) state.AddError("shape", "it must list the weight's sizes");
    if (quantization.scale_block % 2 != 0) state.AddError("blocksize", "it must be even");
    if (!state.status().ok()) return state.status();

    int64_t elements = 1;
    for (const int64_t size : shape) {
      if (size > 0 && elements > (int64_t{1} << 40) / size)
        return Broken(absl::StrCat(state_name, ": the shape is too large"));
      elements *= size;
    }
    if (weight.tensor.type != StoredType::kU8 || weight.tensor.bytes() != static_cast<uint64_t>((elements + 1) / 2)) {
      return Broken(absl::StrCat("tensor ", base::Quote(name), " has ", weight.tensor.bytes(), " bytes; a weight of ",
                                 ShapeText(shape), " in four bits takes ", (elements + 1) / 2));
    }
    const int64_t blocks = (elements + quantization.scale_block - 1) / quantization.scale_block;
    const auto part = [&](const char* end) -> absl::StatusOr<const WeightLocation*> {
      const WeightLocation* found = Find(name + end);
      if (found == nullptr) return Broken(absl::StrCat("tensor ", base::Quote(name + end), " is missing"));
      return found;
    };
    const auto numbers = [&](const char* end, int64_t count) -> absl::StatusOr<std::vector<float>> {
      ASSIGN_OR_RETURN(const WeightLocation* found, part(end));
      if (found->tensor.elements() != count) {
        return Broken(absl::StrCat("tensor ", base::Quote(name + end), " has ", found->tensor.elements(), " values; ",
                                   count, " are expected"));
      }
      return Numbers(name + end, *found);
    };
    ASSIGN_OR_RETURN(const WeightLocation* scales, part(".absmax"));
    const StoredType expected = is_nested ? StoredType::kU8 : StoredType::kF32;
    if (scales->tensor.type != expected || scales->tensor.elements() != blocks) {
      return Broken(absl::StrCat("tensor ", base::Quote(name + ".absmax"), " must hold ", blocks, " values in ",
                                 StoredTypeName(expected)));
    }
    quantization.scales_file = scales->file;
    quantization.scales = scales->tensor;
    ASSIGN_OR_RETURN(quantization.table, numbers(".quant_map", 16));
    if (is_nested) {
      ASSIGN_OR_RETURN(quantization.nested_table, numbers(".nested_quant_map", 256));
      ASSIGN_OR_RETURN(quantization.nested_scales,
                       numbers(".nested_absmax", (blocks + quantization.nested_block - 1) / quantization.nested_block));
      if (!std::isfinite(quantization.nested_offset))
        return Broken(absl::StrCat(state_name, ": nested_offset is not finite"));
      if (base::Planted("nested_offset_left_out")) quantization.nested_offset = 0;
    }
    // A row of whole blocks of scales can be read by itself.
    weight.is_flat = shape[0] == 0 || elements / shape[0] % quantization.scale_block != 0;
    weight.tensor.shape = shape;
    weight.quantization = std::make_shared<const Quantization>(std::move(quantization));
    return absl::OkStatus();
  }

  WeightLocations& weights_;
  const std::span<const std::map<std::string, std::string>> metadata_;
  const std::string& prefix_;
  const ReadStored& read_;
  const std::string& name_;
  std::map<std::string, std::string> listed_;  // formats by layer, from the headers
};

}  // namespace

absl::Status ResolveQuantization(WeightLocations& weights, std::span<const std::map<std::string, std::string>> metadata,
                                 const std::string& prefix, const ReadStored& read, const std::string& name) {
  return Resolver(weights, metadata, prefix, read, name).Resolve();
}

std::string FormName(const Quantization& quantization) {
  return quantization.type == QuantType::kNibble ? "nf4" : std::string(kernels::QuantTypeName(quantization.type));
}

uint64_t WeightLocation::bytes() const {
  if (content != nullptr) return content->size();
  uint64_t sum = tensor.bytes();
  for (const auto& [unused, part] : more) sum += part.bytes();
  return sum;
}

int64_t WeightLocation::StoredRow(int64_t row) const {
  if (order == RowOrder::kSwappedHalves && !base::Planted("halves_not_swapped")) return (row + rows() / 2) % rows();
  if (order == RowOrder::kRotaryPairs) {
    const int64_t head = rows() / heads, half = head / 2, within = row % head;
    return row - within + within % half * 2 + within / half;
  }
  return row;
}

int64_t ScalesPerRow(const WeightLocation& weight, int64_t columns) {
  if (weight.quantization == nullptr || !weight.quantization->has_scales()) return 0;
  const int64_t block = weight.quantization->scale_block;
  return block == 0 ? 1 : (columns + block - 1) / block;
}

absl::Status ReadScales(const WeightLocation& weight, int64_t row, int64_t rows, int64_t columns,
                        const ReadStored& read, std::span<float> out) {
  const Quantization& quantization = *weight.quantization;
  if (quantization.scale_block == 0) {
    const std::vector<float>& scales = quantization.row_scales;
    for (size_t i = 0; i < out.size(); ++i) {
      const auto at = static_cast<size_t>(weight.first_row + weight.StoredRow(row + static_cast<int64_t>(i)));
      out[i] = scales.empty() ? 1.0f : scales.size() == 1 ? scales[0] : scales[at];
    }
    return absl::OkStatus();
  }
  const int64_t per_row = ScalesPerRow(weight, columns), first = (weight.first_row + row) * per_row;
  const auto count = static_cast<size_t>(rows * per_row);
  if (quantization.nested_table.empty()) {
    RETURN_IF_ERROR(read(quantization.scales_file, quantization.scales, static_cast<uint64_t>(first) * sizeof(float),
                         std::as_writable_bytes(out.first(count))));
  } else {
    std::vector<uint8_t> codes(count);
    RETURN_IF_ERROR(read(quantization.scales_file, quantization.scales, static_cast<uint64_t>(first),
                         std::as_writable_bytes(std::span(codes))));
    for (size_t i = 0; i < count; ++i) {
      const auto group = static_cast<size_t>((first + static_cast<int64_t>(i)) / quantization.nested_block);
      const float product = quantization.nested_table[codes[i]] * quantization.nested_scales[group];
      out[i] = product + quantization.nested_offset;
    }
  }
  if (!std::ranges::all_of(out.first(count), [](float scale) { return std::isfinite(scale); })) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", base::Quote(weight.tensor.name), " has a scale that is not finite"));
  }
  return absl::OkStatus();
}

}  // namespace tessera::models
