#include "models/loading/weight_loader.h"

#include <algorithm>
#include <set>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/planted.h"
#include "base/status_macros.h"
#include "models/loading/eight_bits.h"

namespace tessera::models {
namespace {

constexpr int64_t kBufferBytes = int64_t{16} << 20;
constexpr size_t kListed = 40;  // names of each kind in an error; the rest is counted

std::string Shape(const std::vector<int64_t>& shape) { return absl::StrCat("[", absl::StrJoin(shape, ", "), "]"); }

std::string Section(const char* title, const std::vector<std::string>& lines) {
  if (lines.empty()) return "";
  const size_t shown = std::min(lines.size(), kListed);
  std::string text = absl::StrCat("\n  ", title, " (", lines.size(), "):");
  for (size_t i = 0; i < shown; ++i) absl::StrAppend(&text, "\n    ", lines[i]);
  if (shown < lines.size()) absl::StrAppend(&text, "\n    and ", lines.size() - shown, " more");
  return text;
}

using Names = std::set<std::string, std::less<>>;

Names KnownNames(const ParamTable& table) {
  Names known(table.ignored().begin(), table.ignored().end());
  for (const Param& param : table.params()) {
    known.insert(param.spec.name);
    known.insert(param.spec.aliases.begin(), param.spec.aliases.end());
  }
  return known;
}

// "encoder" of "encoder.block.0.weight".
std::string OuterScope(const std::string& name) { return name.substr(0, name.find('.')); }

// Where each parameter lies in the folder: its own name, or else an alias.
const WeightFolder::Location* Locate(const WeightFolder& folder, const ParamSpec& spec) {
  if (const auto it = folder.tensors().find(spec.name); it != folder.tensors().end()) return &it->second;
  for (const std::string& alias : spec.aliases) {
    if (const auto it = folder.tensors().find(alias); it != folder.tensors().end()) return &it->second;
  }
  return nullptr;
}

// A run of elements: where it begins in the stored tensor, and in this rank's part of it.
struct Segment {
  int64_t from = 0, to = 0, count = 0;
};

// This rank's part of a parameter, as few runs as there can be.
std::vector<Segment> SegmentsOf(const Param& param, const TensorShard& shard) {
  const std::vector<int64_t>& whole = param.spec.shape;
  if (param.spec.role == LinearRole::kRow && shard.size > 1) {
    std::vector<int64_t> parts = param.spec.in_parts;
    if (base::Planted("packed_weight_sharded_plainly")) parts.clear();
    if (parts.empty()) parts = {whole[1]};
    std::vector<Segment> segments;
    int64_t to = 0;
    for (int64_t row = 0; row < whole[0]; ++row) {
      int64_t from = row * whole[1];
      for (const int64_t part : parts) {
        const int64_t count = shard.end(part) - shard.begin(part);
        if (count > 0) segments.push_back({.from = from + shard.begin(part), .to = to, .count = count});
        from += part;
        to += count;
      }
    }
    return segments;
  }
  int64_t row = 1, count = 1;
  for (size_t i = 1; i < whole.size(); ++i) row *= whole[i];
  for (const int64_t size : param.shape) count *= size;
  if (count == 0) return {};
  const int64_t first = param.spec.role == LinearRole::kColumn ? shard.begin(whole[0]) : 0;
  return {{.from = first * row, .to = 0, .count = count}};
}

absl::Status ReadTensor(const WeightFolder& folder, const WeightFolder::Location& location, const Param& param,
                        const TensorShard& shard, std::vector<std::byte>& buffer) {
  at::Tensor place = param.LoadedValue();
  const at::ScalarType stored = *TorchType(location.tensor.type);
  const int64_t size = static_cast<int64_t>(c10::elementSize(stored)), step = kBufferBytes / size;
  const bool straight = stored == place.scalar_type() && place.device().is_cpu();
  at::Tensor flat = place.view(-1);
  for (const Segment& segment : SegmentsOf(param, shard)) {
    if (straight) {
      std::byte* to = static_cast<std::byte*>(place.data_ptr()) + segment.to * size;
      const std::span<std::byte> bytes(to, static_cast<size_t>(segment.count * size));
      RETURN_IF_ERROR(folder.Read(location, static_cast<uint64_t>(segment.from * size), bytes));
      continue;
    }
    for (int64_t begin = 0; begin < segment.count; begin += step) {
      const int64_t count = std::min(step, segment.count - begin);
      buffer.resize(static_cast<size_t>(count * size));
      RETURN_IF_ERROR(folder.Read(location, static_cast<uint64_t>((segment.from + begin) * size), buffer));
      flat.narrow(0, segment.to + begin, count).copy_(at::from_blob(buffer.data(), {count}, stored));
    }
  }
  return absl::OkStatus();
}

// The columns of a whole row that are this rank's, side by side.
at::Tensor OwnColumns(const at::Tensor& rows, const ParamSpec& spec, const TensorShard& shard) {
  if (spec.role != LinearRole::kRow || shard.size == 1) return rows;
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const int64_t part : spec.in_parts.empty() ? std::vector{rows.size(1)} : spec.in_parts) {
    parts.push_back(rows.narrow(1, first + shard.begin(part), shard.end(part) - shard.begin(part)));
    first += part;
  }
  return at::cat(parts, 1);
}

// Into eight bits, some rows at a time. Scales are those of whole rows, so that a weight is the same number whoever has
// it; `dtype` is the model's, to which the stored numbers are rounded first.
absl::Status ReadInEightBits(const WeightFolder& folder, const WeightFolder::Location& location, const Param& param,
                             const TensorShard& shard, at::ScalarType dtype, std::vector<std::byte>& buffer) {
  const at::ScalarType stored = *TorchType(location.tensor.type);
  const int64_t columns = param.spec.shape[1], row_bytes = columns * static_cast<int64_t>(c10::elementSize(stored));
  const int64_t step = std::max<int64_t>(kBufferBytes / std::max<int64_t>(row_bytes, 1), 1);
  const int64_t first = param.spec.role == LinearRole::kColumn ? shard.begin(param.spec.shape[0]) : 0;
  for (int64_t begin = 0; begin < param.shape[0]; begin += step) {
    const int64_t count = std::min(step, param.shape[0] - begin);
    buffer.resize(static_cast<size_t>(count * row_bytes));
    RETURN_IF_ERROR(folder.Read(location, static_cast<uint64_t>((first + begin) * row_bytes), buffer));
    const at::Tensor rows = at::from_blob(buffer.data(), {count, columns}, stored).to(dtype);
    const at::Tensor own = OwnColumns(rows, param.spec, shard);
    const at::Tensor& measured = base::Planted("scale_of_own_columns") ? own : rows;
    const at::Tensor scales = ScalesOf(measured.abs().amax(1));
    param.LoadedValue().narrow(0, begin, count).copy_(ToEightBits(own, scales));
    param.LoadedScales().narrow(0, begin, count).copy_(scales);
  }
  return absl::OkStatus();
}

}  // namespace

std::optional<at::ScalarType> TorchType(StoredType type) {
  switch (type) {
    case StoredType::kF64:
      return at::kDouble;
    case StoredType::kF32:
      return at::kFloat;
    case StoredType::kF16:
      return at::kHalf;
    case StoredType::kBF16:
      return at::kBFloat16;
    case StoredType::kI64:
      return at::kLong;
    case StoredType::kI32:
      return at::kInt;
    case StoredType::kU8:
      return at::kByte;
    case StoredType::kBool:
      return at::kBool;
    default:
      return std::nullopt;
  }
}

std::vector<std::string> ExtraTensors(const WeightFolder& folder, const ParamTable& table) {
  const Names known = KnownNames(table);
  std::vector<std::string> extra;
  for (const auto& [name, unused] : folder.tensors()) {
    if (!known.contains(name)) extra.push_back(name);
  }
  return extra;
}

absl::Status CheckWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component) {
  std::vector<std::string> missing, unexpected, misshapen;
  for (const Param& param : table.params()) {
    const WeightFolder::Location* location = Locate(folder, param.spec);
    if (location == nullptr) {
      missing.push_back(absl::StrCat(param.spec.name, " ", Shape(param.spec.shape)));
    } else if (location->tensor.shape != param.spec.shape) {
      misshapen.push_back(absl::StrCat(param.spec.name, ": ", Shape(location->tensor.shape), " in the file, ",
                                       Shape(param.spec.shape), " by the configuration"));
    } else if (const auto type = TorchType(location->tensor.type); !type || !at::isFloatingType(*type)) {
      misshapen.push_back(absl::StrCat(param.spec.name, ": stored as ",
                                       std::string(StoredTypeName(location->tensor.type)),
                                       "; weights must be F64, F32, F16 or BF16"));
    }
  }
  // Beside a misfit all that is extra may explain it. Alone it is another part of a larger model, unless it lies among
  // this one's parameters, as a block or a norm does that the configuration does not have.
  const bool fits = missing.empty() && misshapen.empty();
  Names scopes;
  for (const std::string& name : KnownNames(table)) scopes.insert(OuterScope(name));
  for (const std::string& name : ExtraTensors(folder, table)) {
    if (fits && !scopes.contains(OuterScope(name))) continue;
    unexpected.push_back(absl::StrCat(name, " ", Shape(folder.tensors().find(name)->second.tensor.shape)));
  }
  if (missing.empty() && unexpected.empty() && misshapen.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(component, ": the weights do not fit config.json",
                                                 Section("missing", missing), Section("unexpected", unexpected),
                                                 Section("of another shape or type", misshapen)));
}

absl::Status LoadWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component) {
  RETURN_IF_ERROR(CheckWeights(folder, table, component));
  std::vector<std::byte> buffer;
  for (const Param& param : table.params()) {
    const WeightFolder::Location& location = *Locate(folder, param.spec);
    RETURN_IF_ERROR(param.scales.defined()
                        ? ReadInEightBits(folder, location, param, table.shard(), table.dtype(), buffer)
                        : ReadTensor(folder, location, param, table.shard(), buffer));
  }
  return absl::OkStatus();
}

}  // namespace tessera::models
