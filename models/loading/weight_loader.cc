#include "models/loading/weight_loader.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "models/loading/eight_bits.h"
#include "models/weights/read_ahead.h"

namespace tessera::models {
namespace {

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

// "encoder.block.0.weight" → "encoder".
std::string OuterScope(const std::string& name) { return name.substr(0, name.find('.')); }

// Returns the location of each parameter in the folder, under its own name or else an alias.
const WeightFolder::Location* Locate(const WeightFolder& folder, const ParamSpec& spec) {
  if (const auto it = folder.tensors().find(spec.name); it != folder.tensors().end()) return &it->second;
  for (const std::string& alias : spec.aliases) {
    if (const auto it = folder.tensors().find(alias); it != folder.tensors().end()) return &it->second;
  }
  return nullptr;
}

// Bytes read per turn, and the number of turns in progress. Together with the readers' own row buffers (for rows of
// which only a part is kept) these are the 64 MiB of buffers in LoadPlan.
constexpr int64_t kTurnBytes = int64_t{8} << 20;
constexpr size_t kBuffers = 4;
constexpr int64_t kPackedAlignment = 64;

// The destination of a read: a run of elements (or of eight-bit rows) of this rank's part of a parameter.
struct Placement {
  const Param* param = nullptr;
  at::ScalarType stored = at::kFloat;
  int64_t to = 0, count = 0;
  int64_t buffered_at = 0;
};

// All reads of a load, and the placements of those that go through a buffer.
struct LoadTurns {
  std::vector<ReadTurn> reads;
  std::vector<std::vector<Placement>> placements;  // by turn
  int64_t buffer_bytes = 0;                        // of the largest turn
};

// The parameters that a load fills, and this rank's part of them.
struct LoadTarget {
  std::span<const Param> params;
  TensorShard shard;
  at::Device device;
  at::ScalarType dtype;      // the model's
  bool rows_of_all = false;  // the part is a range of the rows of every parameter, whatever its role
};

// Fills turns one after another.
class TurnsOfLoad {
 public:
  TurnsOfLoad(const WeightFolder& folder, const LoadTarget& target)
      : shard_(target.shard), rows_of_all_(target.rows_of_all) {
    for (const Param& param : target.params) {
      const WeightFolder::Location& location = *Locate(folder, param.spec);
      if (param.spec.last_frame) {
        AddLastSlices(param, location);
      } else if (rows_of_all_) {
        AddRuns(param, location);
      } else if (param.scales.defined()) {
        AddRowsForEightBits(param, location);
      } else if (param.spec.role == LinearRole::kRow && shard_.size > 1) {
        AddColumns(param, location);
      } else {
        AddRuns(param, location);
      }
    }
  }

  LoadTurns Take() { return std::move(turns_); }

 private:
  // Returns the runs of a parameter's rows that this rank holds; all rows if it is not split by rows.
  std::vector<ChannelRange> RowRuns(const Param& param) const {
    const std::vector<int64_t>& whole = param.spec.shape;
    const int64_t rows = whole.empty() ? 1 : whole[0];
    if (rows_of_all_) return shard_.ranges(rows, {});
    if (param.spec.role != LinearRole::kColumn) return {{.begin = 0, .count = rows}};
    return shard_.ranges(rows,
                         base::Planted("packed_weight_sharded_plainly") ? std::vector<int64_t>() : param.spec.parts);
  }

  // Adds contiguous runs of whole rows.
  void AddRuns(const Param& param, const WeightFolder::Location& location) {
    const std::vector<int64_t>& whole = param.spec.shape;
    int64_t row = 1, to = 0;
    for (size_t i = 1; i < whole.size(); ++i) row *= whole[i];
    const int64_t size = Size(location), step = kTurnBytes / size;
    for (const ChannelRange& run : RowRuns(param)) {
      const int64_t count = run.count * row;
      for (int64_t begin = 0; begin < count; begin += step) {
        const int64_t elements = std::min(step, count - begin);
        Add({.location = &location,
             .offset = (run.begin * row + begin) * size,
             .rows = 1,
             .row_bytes = elements * size},
            {.param = &param, .to = to + begin, .count = elements});
      }
      to += count;
    }
  }

  // Adds the last slice in time of every pair of channels of a causal convolution, [out, in, frames, height, width].
  void AddLastSlices(const Param& param, const WeightFolder::Location& location) {
    const std::vector<int64_t>& whole = param.spec.shape;
    const int64_t size = Size(location), slice = whole[3] * whole[4], row_bytes = whole[2] * slice * size;
    const int64_t pairs = param.shape[0] * whole[1], first = rows_of_all_ ? shard_.begin(whole[0]) * whole[1] : 0;
    const int64_t kept = base::Planted("first_slice_in_time") ? 0 : whole[2] - 1;
    const int64_t step = std::max<int64_t>(kTurnBytes / row_bytes, 1);
    for (int64_t begin = 0; begin < pairs; begin += step) {
      const int64_t count = std::min(step, pairs - begin);
      Add({.location = &location,
           .offset = (first + begin) * row_bytes,
           .rows = count,
           .row_bytes = row_bytes,
           .kept = {{.begin = kept * slice * size, .count = slice * size}}},
          {.param = &param, .to = begin * slice, .count = count * slice});
    }
  }

  // Adds a range of columns of all rows: whole rows are read and packed before they are copied further.
  void AddColumns(const Param& param, const WeightFolder::Location& location) {
    const int64_t size = Size(location), columns = param.spec.shape[1], rows = param.spec.shape[0];
    std::vector<int64_t> parts = param.spec.parts;
    if (base::Planted("packed_weight_sharded_plainly")) parts.clear();
    std::vector<FileRead::Run> kept;
    for (const ChannelRange& run : shard_.ranges(columns, parts)) {
      if (run.count > 0) kept.push_back({.begin = run.begin * size, .count = run.count * size});
    }
    if (kept.empty()) return;
    const int64_t step = std::max<int64_t>(kTurnBytes / (columns * size), 1);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      Add({.location = &location,
           .offset = begin * columns * size,
           .rows = count,
           .row_bytes = columns * size,
           .kept = kept},
          {.param = &param, .to = begin * param.shape[1], .count = count * param.shape[1]});
    }
  }

  // Adds whole rows, because scales are computed from whole rows.
  void AddRowsForEightBits(const Param& param, const WeightFolder::Location& location) {
    const int64_t row_bytes = param.spec.shape[1] * Size(location);
    const int64_t step = std::max<int64_t>(kTurnBytes / std::max<int64_t>(row_bytes, 1), 1);
    int64_t to = 0;
    for (const ChannelRange& run : RowRuns(param)) {
      for (int64_t begin = 0; begin < run.count; begin += step) {
        const int64_t count = std::min(step, run.count - begin);
        Add({.location = &location, .offset = (run.begin + begin) * row_bytes, .rows = count, .row_bytes = row_bytes},
            {.param = &param, .to = to + begin, .count = count});
      }
      to += run.count;
    }
  }

  static int64_t Size(const WeightFolder::Location& location) {
    return static_cast<int64_t>(c10::elementSize(*TorchType(location.tensor.type)));
  }

  // Small reads share a turn.
  void Add(FileRead read, Placement placement) {
    placement.stored = *TorchType(read.location->tensor.type);
    const at::Tensor place = placement.param->LoadedValue();
    const int64_t bytes = read.kept_bytes();
    if (turns_.reads.empty() || filled_ + bytes > kTurnBytes) {
      turns_.reads.emplace_back();
      turns_.placements.emplace_back();
      filled_ = 0;
    }
    if (place.is_cpu() && place.scalar_type() == placement.stored) {
      read.to = static_cast<std::byte*>(place.data_ptr()) + placement.to * static_cast<int64_t>(place.element_size());
    } else {
      read.buffered_at = placement.buffered_at = filled_;
      turns_.placements.back().push_back(placement);
      turns_.buffer_bytes = std::max(turns_.buffer_bytes, filled_ + bytes);
    }
    filled_ += (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
    turns_.reads.back().push_back(std::move(read));
  }

  const TensorShard shard_;
  const bool rows_of_all_;
  LoadTurns turns_;
  int64_t filled_ = 0;  // bytes of the turn being filled
};

// Returns this rank's columns of whole rows, side by side.
at::Tensor OwnColumns(const at::Tensor& rows, const ParamSpec& spec, const TensorShard& shard) {
  if (spec.role != LinearRole::kRow || shard.size == 1) return rows;
  std::vector<at::Tensor> parts;
  for (const ChannelRange& run : shard.ranges(rows.size(1), spec.parts)) {
    parts.push_back(rows.narrow(1, run.begin, run.count));
  }
  return at::cat(parts, 1);
}

// Quantizes to eight bits. Scales are computed from whole rows, so that a weight has the same value on every rank. The
// stored numbers are rounded to `dtype`, the model's, first.
void PlaceInEightBits(const Placement& placement, const at::Tensor& stored, const TensorShard& shard,
                      at::ScalarType dtype) {
  const Param& param = *placement.param;
  const at::Tensor rows = stored.view({placement.count, param.spec.shape[1]}).to(dtype);
  const at::Tensor own = OwnColumns(rows, param.spec, shard);
  const at::Tensor& measured = base::Planted("scale_of_own_columns") ? own : rows;
  const at::Tensor scales = ScalesOf(measured.abs().amax(1));
  param.LoadedValue().narrow(0, placement.to, placement.count).copy_(ToEightBits(own, scales));
  param.LoadedScales().narrow(0, placement.to, placement.count).copy_(scales);
}

// Copies from a turn's buffer, which is pinned if the parameters are on a device, to the final destination.
void Place(const Placement& placement, const at::Tensor& buffer, const LoadTarget& target) {
  const Param& param = *placement.param;
  const int64_t elements = param.scales.defined() ? placement.count * param.spec.shape[1] : placement.count;
  const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(placement.stored));
  at::Tensor stored = buffer.narrow(0, placement.buffered_at, bytes).view(placement.stored);
  const at::Tensor place = param.LoadedValue();
  const bool same = stored.scalar_type() == place.scalar_type() && !param.scales.defined();
  // A device does the conversion itself.
  if (!same) stored = stored.to(place.device(), /*non_blocking=*/true);
  if (param.scales.defined()) {
    PlaceInEightBits(placement, stored, target.shard, target.dtype);
  } else {
    place.view(-1).narrow(0, placement.to, elements).copy_(stored, /*non_blocking=*/true);
  }
}

// Returns an event recorded on the device's current stream.
c10::Event EventOn(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event event(device.type());
  event.record(guard.getStream(device));
  return event;
}

absl::Status ReadAll(const WeightFolder& folder, const LoadTarget& target) {
  const LoadTurns turns = TurnsOfLoad(folder, target).Take();
  const at::Device device = target.device;
  std::vector<at::Tensor> buffers;
  std::vector<std::span<std::byte>> memory;
  for (size_t i = 0; i < kBuffers; ++i) {
    buffers.push_back(at::empty({turns.buffer_bytes}, at::TensorOptions(at::kByte).pinned_memory(!device.is_cpu())));
    memory.emplace_back(static_cast<std::byte*>(buffers[i].data_ptr()), static_cast<size_t>(turns.buffer_bytes));
  }
  ReadAhead reads(folder, turns.reads, memory);
  std::optional<c10::Event> copied;  // after all copies of the previous turn
  for (size_t turn = 0; turn < turns.reads.size(); ++turn) {
    RETURN_IF_ERROR(reads.Await(turn));
    for (const Placement& placement : turns.placements[turn]) Place(placement, buffers[turn % kBuffers], target);
    if (device.is_cpu()) {
      reads.ReleaseBefore(turn + 1);
      continue;
    }
    // While this turn's copies run, wait for those of the previous turn, whose buffer another turn may need.
    c10::Event event = EventOn(device);
    if (turn > 0 && turn - 1 + kBuffers < turns.reads.size()) copied->synchronize();
    reads.ReleaseBefore(turn);
    copied.emplace(std::move(event));
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
  const auto is_ignored = [&](const std::string& name) {
    return std::ranges::any_of(table.ignored_scopes(),
                               [&](const std::string& scope) { return name.starts_with(scope); });
  };
  for (const auto& [name, unused] : folder.tensors()) {
    if (!known.contains(name) && !is_ignored(name)) extra.push_back(name);
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
  // If a tensor is missing or misshapen, every extra tensor may explain it. Otherwise an extra tensor is another part
  // of a larger model, unless it is in a scope of this component, such as a block or norm that the configuration does
  // not have.
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
  return ReadAll(folder,
                 {.params = table.params(), .shard = table.shard(), .device = table.device(), .dtype = table.dtype()});
}

absl::Status ReadRows(const WeightFolder& folder, std::span<const Param> params, const TensorShard& share) {
  if (params.empty()) return absl::OkStatus();
  const at::Tensor& first = params.front().storage;
  return ReadAll(
      folder,
      {.params = params, .shard = share, .device = first.device(), .dtype = first.scalar_type(), .rows_of_all = true});
}

}  // namespace tessera::models
