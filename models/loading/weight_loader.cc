#include "models/loading/weight_loader.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "kernels/cpu/widen.h"
#include "kernels/quantized/quant_rows.h"
#include "models/loading/deferred_weight.h"
#include "models/loading/eight_bits.h"
#include "models/loading/waiting_memory.h"
#include "models/loading/weight_memory.h"
#include "models/precision.h"
#include "models/weights/load_meter.h"
#include "models/weights/read_ahead.h"

namespace tessera::models {
namespace {

constexpr size_t kListed = 40;  // names of each kind in an error; the rest is counted

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
constexpr int64_t kCheckedBytes = int64_t{1} << 20;  // read at a time of what is only checked
constexpr int64_t kPackedAlignment = 64;

// The destination of a read. Either a run of elements of this rank's part of a parameter (bytes, if it is quantized as
// in the file), or whole rows that are converted: those from `row` on of the stored weight, of which `to` is the first
// row of this rank's part.
struct Placement {
  const Param* param = nullptr;
  const WeightLocation* location = nullptr;
  bool is_converted = false;
  int64_t row = 0;
  int64_t to = 0, count = 0;
  int64_t buffered_at = 0;
  int64_t bytes = 0;
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
  at::ScalarType dtype;                 // the model's
  bool rows_of_all = false;             // the part is a range of the rows of every parameter, whatever its role
  std::span<const Param> checked = {};  // further parameters that are only read and checked
};

// The elements of a row of the whole parameter.
int64_t Columns(const ParamSpec& spec) {
  int64_t columns = 1;
  for (size_t i = 1; i < spec.shape.size(); ++i) columns *= spec.shape[i];
  return columns;
}

// The type of a placement's elements in the buffer; bytes if they are packed.
at::ScalarType StoredAs(const Placement& placement) {
  return placement.location->quantization != nullptr ? at::kByte : *TorchType(placement.location->tensor.type);
}

bool IsSameForm(const QuantForm& form, const Quantization& stored) {
  return form.type == stored.type && form.scale_block == stored.scale_block && form.table == stored.table;
}

// Returns the runs of a parameter's rows that this rank holds; all rows if it is not split by rows.
std::vector<ChannelRange> RowRuns(const Param& param, const LoadTarget& target) {
  const std::vector<int64_t>& whole = param.spec.shape;
  const int64_t rows = whole.empty() ? 1 : whole[0];
  if (target.rows_of_all) return target.shard.ranges(rows, {});
  if (param.spec.role != LinearRole::kColumn) return {{.begin = 0, .count = rows}};
  return target.shard.ranges(
      rows, base::Planted("packed_weight_sharded_plainly") ? std::vector<int64_t>() : param.spec.parts);
}

// Fills a square matrix that the file omits.
void PlaceIdentity(const Param& param, const LoadTarget& target) {
  std::vector<at::Tensor> rows;
  const at::Tensor identity = at::eye(param.spec.shape[0], param.spec.shape[1], at::kFloat);
  for (const ChannelRange& run : RowRuns(param, target)) rows.push_back(identity.narrow(0, run.begin, run.count));
  param.LoadedValue().copy_(at::cat(rows));
}

// Fills turns one after another.
class TurnsOfLoad {
 public:
  TurnsOfLoad(const WeightFolder& folder, const LoadTarget& target)
      : target_(target), shard_(target.shard), rows_of_all_(target.rows_of_all) {
    for (const Param& param : target.params) {
      const WeightFolder::Location* const found = Locate(folder, param.spec);
      if (found == nullptr) {
        PlaceIdentity(param, target);
        continue;
      }
      const WeightFolder::Location& location = *found;
      const bool is_packed = location.quantization != nullptr;
      if (is_packed && location.is_flat) {
        AddFlat(param, location);
      } else if (is_packed != param.form.has_value() ||
                 (is_packed && !IsSameForm(*param.form, *location.quantization))) {
        AddConvertedRows(param, location);
      } else if (param.spec.last_frame) {
        AddLastSlices(param, location);
      } else if (rows_of_all_) {
        AddRuns(param, location);
      } else if (param.spec.role == LinearRole::kRow && shard_.size > 1) {
        AddColumns(param, location);
      } else {
        AddRuns(param, location);
      }
    }
    filled_ = kTurnBytes;  // what is checked has turns for itself
    for (const Param& param : target.checked) {
      if (const WeightFolder::Location* const found = Locate(folder, param.spec)) AddChecked(param, *found);
    }
  }

  LoadTurns Take() { return std::move(turns_); }

 private:
  // Adds contiguous runs of whole rows. The elements of packed rows are bytes.
  void AddRuns(const Param& param, const WeightFolder::Location& location) {
    const int64_t size = ElementBytes(location), row = StoredRowBytes(param, location) / size;
    // Packed rows are not divided, so that they can be checked.
    const int64_t step = param.form ? std::max<int64_t>(kTurnBytes / row, 1) * row : kTurnBytes / size;
    int64_t to = 0;
    for (const ChannelRange& run : RowRuns(param, target_)) {
      const int64_t count = run.count * row;
      for (int64_t begin = 0; begin < count; begin += step) {
        const int64_t elements = std::min(step, count - begin);
        Add({.location = &location,
             .offset = (run.begin * row + begin) * size,
             .rows = 1,
             .row_bytes = elements * size},
            {.param = &param, .location = &location, .to = to + begin, .count = elements});
      }
      to += count;
    }
  }

  // Adds the last slice in time of every pair of channels of a causal convolution, [out, in, frames, height, width].
  void AddLastSlices(const Param& param, const WeightFolder::Location& location) {
    const std::vector<int64_t>& whole = param.spec.shape;
    const int64_t size = ElementBytes(location), slice = whole[3] * whole[4], row_bytes = whole[2] * slice * size;
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
          {.param = &param, .location = &location, .to = begin * slice, .count = count * slice});
    }
  }

  // Adds a range of columns of all rows: whole rows are read and packed before they are copied further.
  void AddColumns(const Param& param, const WeightFolder::Location& location) {
    const int64_t columns = param.spec.shape[1], rows = param.spec.shape[0],
                  row_bytes = StoredRowBytes(param, location);
    // The bytes before a column.
    const auto at = [&](int64_t column) {
      return param.form ? kernels::RowBytes(param.form->type, column) : column * ElementBytes(location);
    };
    std::vector<int64_t> parts = param.spec.parts;
    if (base::Planted("packed_weight_sharded_plainly")) parts.clear();
    std::vector<FileRead::Run> kept;
    int64_t own = 0;  // elements of a row of this rank's part
    for (const ChannelRange& run : shard_.ranges(columns, parts)) {
      if (run.count == 0) continue;
      kept.push_back({.begin = at(run.begin), .count = at(run.begin + run.count) - at(run.begin)});
      own += kept.back().count / ElementBytes(location);
    }
    if (kept.empty()) return;
    const int64_t step = std::max<int64_t>(kTurnBytes / row_bytes, 1);
    for (int64_t begin = 0; begin < rows; begin += step) {
      const int64_t count = std::min(step, rows - begin);
      Add({.location = &location, .offset = begin * row_bytes, .rows = count, .row_bytes = row_bytes, .kept = kept},
          {.param = &param, .location = &location, .to = begin * own, .count = count * own});
    }
  }

  // Adds whole rows, because they are unpacked, or scales are computed from them.
  void AddConvertedRows(const Param& param, const WeightFolder::Location& location) {
    const int64_t row_bytes = StoredRowBytes(param, location);
    const int64_t step = std::max<int64_t>(kTurnBytes / std::max<int64_t>(row_bytes, 1), 1);
    int64_t to = 0;
    for (const ChannelRange& run : RowRuns(param, target_)) {
      for (int64_t begin = 0; begin < run.count; begin += step) {
        const int64_t count = std::min(step, run.count - begin), row = run.begin + begin;
        Add({.location = &location, .offset = row * row_bytes, .rows = count, .row_bytes = row_bytes},
            {.param = &param,
             .location = &location,
             .is_converted = true,
             .row = row,
             .to = to + begin,
             .count = count});
      }
      to += run.count;
    }
  }

  // Adds the whole of a weight whose blocks run over the ends of rows.
  void AddFlat(const Param& param, const WeightFolder::Location& location) {
    Add({.location = &location, .rows = 1, .row_bytes = static_cast<int64_t>(location.tensor.bytes())},
        {.param = &param, .location = &location, .is_converted = true, .count = location.rows()});
  }

  // Adds reads of which nothing is kept. They overwrite each other in a part of the buffer that stays in the cache of a
  // processor.
  void AddChecked(const Param& param, const WeightFolder::Location& location) {
    const int64_t row_bytes =
        location.is_flat ? static_cast<int64_t>(location.tensor.bytes()) : StoredRowBytes(param, location);
    for (const ChannelRange& run : RowRuns(param, target_)) {
      const int64_t first = location.is_flat ? 0 : run.begin, rows = location.is_flat ? 1 : run.count;
      const int64_t step = std::max<int64_t>(kCheckedBytes / std::max<int64_t>(row_bytes, 1), 1);
      for (int64_t begin = 0; begin < rows; begin += step) {
        const int64_t count = std::min(step, rows - begin);
        FileRead read{
            .location = &location, .offset = (first + begin) * row_bytes, .rows = count, .row_bytes = row_bytes};
        BeginTurn(read.kept_bytes());
        turns_.buffer_bytes = std::max(turns_.buffer_bytes, read.kept_bytes());
        filled_ += read.kept_bytes();
        turns_.reads.back().push_back(std::move(read));
      }
    }
  }

  // The bytes of an element of a plain weight; one for a packed weight.
  static int64_t ElementBytes(const WeightFolder::Location& location) {
    if (location.quantization != nullptr) return 1;
    return static_cast<int64_t>(c10::elementSize(*TorchType(location.tensor.type)));
  }

  static int64_t StoredRowBytes(const Param& param, const WeightFolder::Location& location) {
    const int64_t columns = Columns(param.spec);
    return location.quantization != nullptr ? kernels::RowBytes(location.quantization->type, columns)
                                            : columns * ElementBytes(location);
  }

  // Small reads share a turn.
  void BeginTurn(int64_t bytes) {
    if (!turns_.reads.empty() && filled_ + bytes <= kTurnBytes) return;
    turns_.reads.emplace_back();
    turns_.placements.emplace_back();
    filled_ = 0;
  }

  void Add(FileRead read, Placement placement) {
    const at::Tensor place = placement.param->LoadedValue();
    const int64_t bytes = read.kept_bytes();
    placement.bytes = bytes;
    BeginTurn(bytes);
    const bool is_direct = !placement.is_converted && place.is_cpu() && place.scalar_type() == StoredAs(placement);
    if (is_direct) {
      read.to = static_cast<std::byte*>(place.data_ptr()) + placement.to * static_cast<int64_t>(place.element_size());
    } else {
      read.buffered_at = placement.buffered_at = filled_;
      turns_.placements.back().push_back(placement);
      turns_.buffer_bytes = std::max(turns_.buffer_bytes, filled_ + bytes);
    }
    filled_ += (bytes + kPackedAlignment - 1) / kPackedAlignment * kPackedAlignment;
    turns_.reads.back().push_back(std::move(read));
  }

  const LoadTarget& target_;
  const TensorShard& shard_;
  const bool rows_of_all_;
  LoadTurns turns_;
  int64_t filled_ = 0;  // bytes of the turn being filled
};

// Returns this rank's columns of whole rows, side by side.
at::Tensor OwnColumns(const at::Tensor& rows, const ParamSpec& spec, const LoadTarget& target) {
  if (spec.role != LinearRole::kRow || target.shard.size == 1 || target.rows_of_all) return rows;
  std::vector<at::Tensor> parts;
  for (const ChannelRange& run : target.shard.ranges(rows.size(1), spec.parts)) {
    parts.push_back(rows.narrow(1, run.begin, run.count));
  }
  return at::cat(parts, 1);
}

// Quantizes to eight bits. Scales are computed from whole rows, so that a weight has the same value on every rank. The
// stored numbers are rounded to the model's dtype first.
void PlaceInEightBits(const Placement& placement, const at::Tensor& stored, const LoadTarget& target) {
  const Param& param = *placement.param;
  const at::Tensor rows = stored.to(target.dtype);
  const at::Tensor own = OwnColumns(rows, param.spec, target);
  const at::Tensor& measured = base::Planted("scale_of_own_columns") ? own : rows;
  const at::Tensor scales = ScalesOf(measured.abs().amax(1));
  param.LoadedValue().narrow(0, placement.to, placement.count).copy_(ToEightBits(own, scales).view(at::kByte));
  param.LoadedScales().narrow(0, placement.to, placement.count).copy_(scales);
}

// Quantizes rows in the host's memory to another form. Scales are computed as for eight bits.
void PlaceQuantized(const Placement& placement, const at::Tensor& stored, const LoadTarget& target) {
  const Param& param = *placement.param;
  const QuantForm& form = *param.form;
  const at::Tensor rows = stored.to(target.dtype).to(at::kFloat).contiguous();
  const int64_t count = rows.size(0), columns = rows.size(1);
  const at::Tensor bytes = at::empty({count, kernels::RowBytes(form.type, columns)}, at::kByte);
  const at::Tensor scales = at::empty({count, form.scales_per_row(columns)}, at::kFloat);
  kernels::QuantizeRows(form.type, rows.const_data_ptr<float>(), count, columns,
                        static_cast<std::byte*>(bytes.data_ptr()), scales.mutable_data_ptr<float>());
  std::vector<at::Tensor> own;
  if (param.spec.role == LinearRole::kRow && target.shard.size > 1 && !target.rows_of_all) {
    for (const ChannelRange& run : target.shard.ranges(columns, param.spec.parts)) {
      const int64_t begin = kernels::RowBytes(form.type, run.begin);
      own.push_back(bytes.narrow(1, begin, kernels::RowBytes(form.type, run.begin + run.count) - begin));
    }
  }
  param.LoadedValue().narrow(0, placement.to, placement.count).copy_(own.empty() ? bytes : at::cat(own, 1));
  if (scales.numel() > 0) param.LoadedScales().narrow(0, placement.to, placement.count).copy_(scales);
}

// Stores whole rows of fp32 in a plain parameter.
void PlaceWidened(const Placement& placement, const at::Tensor& rows, const LoadTarget& target) {
  const Param& param = *placement.param;
  std::vector<int64_t> shape = param.spec.shape;
  if (shape.empty()) {
    param.LoadedValue().copy_(rows.view({}));
    return;
  }
  shape[0] = rows.size(0);
  at::Tensor own = rows.view(shape);
  if (param.spec.last_frame) own = own.select(2, shape[2] - 1);
  if (shape.size() == 2) own = OwnColumns(own, param.spec, target);
  param.LoadedValue().narrow(0, placement.to, own.size(0)).copy_(own);
}

// Stores the rows of a flat weight, all of which have been read, in this rank's part.
void PlaceFlat(const Placement& placement, const at::Tensor& rows, const std::vector<ChannelRange>& own,
               const LoadTarget& target) {
  Placement each = placement;
  for (const ChannelRange& run : own) {
    each.count = run.count;
    const at::Tensor part = rows.narrow(0, run.begin, run.count);
    if (!each.param->form) {
      PlaceWidened(each, part, target);
    } else {
      PlaceQuantized(each, part, target);
    }
    each.to += run.count;
  }
}

absl::Status PlaceConverted(const WeightFolder& folder, const Placement& placement, const at::Tensor& bytes,
                            const LoadTarget& target) {
  const Param& param = *placement.param;
  const bool to_eight_bits = param.form && param.form->type == kernels::QuantType::kInt8;
  at::Tensor rows;
  if (placement.location->quantization != nullptr) {
    ASSIGN_OR_RETURN(rows, WidenedRows(folder, *placement.location, placement.row, placement.count,
                                       static_cast<const std::byte*>(bytes.const_data_ptr())));
  } else {
    rows = bytes.view(StoredAs(placement)).view({placement.count, Columns(param.spec)});
    // A device does the conversion itself.
    if (to_eight_bits) rows = rows.to(param.LoadedValue().device(), /*non_blocking=*/true);
  }
  if (placement.location->quantization != nullptr && placement.location->is_flat) {
    PlaceFlat(placement, rows, RowRuns(param, target), target);
  } else if (to_eight_bits) {
    PlaceInEightBits(placement, rows, target);
  } else if (param.form) {
    PlaceQuantized(placement, rows, target);
  } else {
    PlaceWidened(placement, rows, target);
  }
  return absl::OkStatus();
}

// Copies from a turn's buffer, which is pinned if the parameters are on a device, to the final destination.
absl::Status Place(const WeightFolder& folder, const Placement& placement, const at::Tensor& buffer,
                   const LoadTarget& target) {
  const at::Tensor bytes = buffer.narrow(0, placement.buffered_at, placement.bytes);
  if (placement.is_converted) return PlaceConverted(folder, placement, bytes, target);
  at::Tensor stored = bytes.view(StoredAs(placement));
  const at::Tensor place = placement.param->LoadedValue();
  // A device does the conversion itself.
  if (stored.scalar_type() != place.scalar_type()) stored = stored.to(place.device(), /*non_blocking=*/true);
  place.view(-1).narrow(0, placement.to, placement.count).copy_(stored, /*non_blocking=*/true);
  return absl::OkStatus();
}

// Stores the scales of the weights that stay packed as they are in the files.
absl::Status PlaceScales(const WeightFolder& folder, std::span<const Param> params, const LoadTarget& target) {
  for (const Param& param : params) {
    if (!param.form || !param.scales.defined()) continue;
    const WeightLocation& location = *Locate(folder, param.spec);
    if (location.quantization == nullptr || location.is_flat || !IsSameForm(*param.form, *location.quantization)) {
      continue;
    }
    const int64_t columns = Columns(param.spec), per_row = ScalesPerRow(location, columns);
    int64_t to = 0;
    for (const ChannelRange& run : RowRuns(param, target)) {
      at::Tensor scales = at::empty({run.count, per_row}, at::kFloat);
      RETURN_IF_ERROR(folder.ReadScales(location, run.begin, run.count, columns,
                                        {scales.mutable_data_ptr<float>(), static_cast<size_t>(scales.numel())}));
      if (per_row > 1 && param.spec.role == LinearRole::kRow && target.shard.size > 1 && !target.rows_of_all) {
        std::vector<at::Tensor> own;
        for (const ChannelRange& part : target.shard.ranges(columns, param.spec.parts)) {
          own.push_back(scales.narrow(1, part.begin / param.form->scale_block, part.count / param.form->scale_block));
        }
        scales = at::cat(own, 1);
      }
      param.LoadedScales().narrow(0, to, run.count).copy_(scales);
      to += run.count;
    }
  }
  return absl::OkStatus();
}

// Returns InvalidArgument if this rank's columns of a packed weight begin or end within a block.
absl::Status CheckCuts(std::span<const Param> params, const TensorShard& shard) {
  for (const Param& param : params) {
    if (!param.form || param.spec.role != LinearRole::kRow || shard.size == 1) continue;
    for (const ChannelRange& run : shard.ranges(param.spec.shape[1], param.spec.parts)) {
      if (param.form->can_cut_at(run.begin) && param.form->can_cut_at(run.begin + run.count)) continue;
      return absl::InvalidArgumentError(absl::StrCat("tensor=", shard.size, " divides the ", param.spec.shape[1],
                                                     " columns of ", param.spec.name, " within a block of ",
                                                     std::string(kernels::QuantTypeName(param.form->type)),
                                                     "; use another degree, or --weights bf16"));
    }
  }
  return absl::OkStatus();
}

// Returns an event recorded on the device's current stream.
c10::Event EventOn(at::Device device) {
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event event(device.type());
  event.record(guard.getStream(device));
  return event;
}

uint64_t BytesOf(const ReadTurn& turn) {
  int64_t bytes = 0;
  for (const FileRead& read : turn) bytes += read.rows * read.row_bytes;
  return static_cast<uint64_t>(bytes);
}

absl::Status ReadAll(const WeightFolder& folder, const LoadTarget& target, const ReadReport& report) {
  for (const std::span<const Param> params : {target.params, target.checked}) {
    if (!target.rows_of_all) RETURN_IF_ERROR(CheckCuts(params, target.shard));
    RETURN_IF_ERROR(PlaceScales(folder, params, target));
  }
  const LoadTurns turns = TurnsOfLoad(folder, target).Take();
  const at::Device device = target.device;
  WaitingMemory pinned;
  std::vector<at::Tensor> buffers;
  std::vector<std::span<std::byte>> memory;
  for (size_t i = 0; i < kBuffers; ++i) {
    buffers.push_back(device.is_cpu() ? at::empty({turns.buffer_bytes}, at::kByte)
                                      : pinned.Allocate({turns.buffer_bytes}, at::kByte));
    memory.emplace_back(static_cast<std::byte*>(buffers[i].data_ptr()), static_cast<size_t>(turns.buffer_bytes));
  }
  ReadAhead reads(folder, turns.reads, memory);
  uint64_t done = 0, whole = 0;
  for (const ReadTurn& turn : turns.reads) whole += BytesOf(turn);
  std::optional<c10::Event> copied;  // after all copies of the previous turn
  for (size_t turn = 0; turn < turns.reads.size(); ++turn) {
    RETURN_IF_ERROR(reads.Await(turn));
    done += BytesOf(turns.reads[turn]);
    if (report) report(done, whole);
    for (const Placement& placement : turns.placements[turn]) {
      RETURN_IF_ERROR(Place(folder, placement, buffers[turn % kBuffers], target));
    }
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

ParamTable::FormOf StoredForms(const WeightFolder& folder) {
  return [&folder](const ParamSpec& spec) -> std::optional<QuantForm> {
    const WeightLocation* location = Locate(folder, spec);
    if (location == nullptr || location->quantization == nullptr || location->is_flat) return std::nullopt;
    const Quantization& stored = *location->quantization;
    return QuantForm{.type = stored.type, .scale_block = stored.scale_block, .table = stored.table};
  };
}

absl::StatusOr<at::Tensor> WidenedRows(const WeightFolder& folder, const WeightLocation& location, int64_t row,
                                       int64_t rows, const std::byte* bytes) {
  const Quantization& quantization = *location.quantization;
  const int64_t columns = c10::multiply_integers(location.tensor.shape) / std::max<int64_t>(location.rows(), 1);
  const int64_t read_rows = location.is_flat ? 1 : rows, read_columns = location.is_flat ? rows * columns : columns;
  std::vector<float> scales(static_cast<size_t>(read_rows * ScalesPerRow(location, read_columns)));
  if (!scales.empty()) RETURN_IF_ERROR(folder.ReadScales(location, row, read_rows, read_columns, scales));
  const at::Tensor wide = at::empty({rows, columns}, at::kFloat);
  kernels::cpu::WidenRows({.type = quantization.type,
                           .bytes = bytes,
                           .row_bytes = kernels::RowBytes(quantization.type, read_columns),
                           .columns = read_columns,
                           .scales = scales.empty() ? nullptr : scales.data(),
                           .scale_block = quantization.scale_block,
                           .table = quantization.table.empty() ? nullptr : quantization.table.data()},
                          0, read_rows, wide.mutable_data_ptr<float>());
  return wide;
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
      if (param.spec.is_identity_if_missing) continue;
      const std::optional<std::string> name = folder.NameInFile(param.spec.name);
      missing.push_back(
          absl::StrCat(param.spec.name, " ", ShapeText(param.spec.shape),
                       name && *name != param.spec.name ? absl::StrCat(", in ", *name, " of the file") : ""));
    } else if (location->tensor.shape != param.spec.shape) {
      misshapen.push_back(absl::StrCat(param.spec.name, ": ", ShapeText(location->tensor.shape), " in the file, ",
                                       ShapeText(param.spec.shape), " by the configuration"));
    } else if (const auto type = TorchType(location->tensor.type);
               location->quantization == nullptr && (!type || !at::isFloatingType(*type))) {
      misshapen.push_back(absl::StrCat(param.spec.name, ": stored as ",
                                       std::string(StoredTypeName(location->tensor.type)),
                                       "; weights must be F64, F32, F16, BF16 or quantized with their scales"));
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
    const StoredTensor& tensor = folder.tensors().find(name)->second.tensor;
    unexpected.push_back(absl::StrCat(tensor.name, " ", ShapeText(tensor.shape)));
  }
  if (missing.empty() && unexpected.empty() && misshapen.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(component, ": the weights do not fit config.json",
                                                 Section("missing", missing), Section("unexpected", unexpected),
                                                 Section("of another shape or type", misshapen)));
}

absl::Status NameWeights(WeightFolder& folder, const ParamTable& table) {
  if (!folder.is_foreign()) return absl::OkStatus();
  std::map<std::string, const std::vector<int64_t>*, std::less<>> shapes;
  for (const Param& param : table.params()) {
    shapes[param.spec.name] = &param.spec.shape;
    for (const std::string& alias : param.spec.aliases) shapes[alias] = &param.spec.shape;
  }
  const auto shape_of = [&](std::string_view name) -> const std::vector<int64_t>* {
    const auto found = shapes.find(name);
    return found == shapes.end() ? nullptr : found->second;
  };
  return folder.Name(shape_of);
}

ReadReport ReportTo(LoadMeter* meter, const std::string& component) {
  if (meter == nullptr) return {};
  return [meter, component](uint64_t done, uint64_t whole) { meter->OnRead(component, done, whole); };
}

absl::Status LoadWeights(const WeightFolder& folder, const ParamTable& table, const std::string& component,
                         LoadMeter* meter) {
  RETURN_IF_ERROR(CheckWeights(folder, table, component));
  return ReadAll(folder,
                 {.params = table.params(), .shard = table.shard(), .device = table.device(), .dtype = table.dtype()},
                 ReportTo(meter, component));
}

absl::Status LoadDeferred(std::shared_ptr<const WeightFolder> folder, ParamTable& table, const std::string& component,
                          LoadMeter* meter) {
  RETURN_IF_ERROR(CheckWeights(*folder, table, component));
  const LoadTarget target = {.params = {}, .shard = table.shard(), .device = table.device(), .dtype = table.dtype()};
  const auto read = [folder, target](std::span<const Param> params) {
    LoadTarget now = target;
    now.params = params;
    const WeightPages pages;
    absl::Status status = ReadAll(*folder, now, {});
    if (status.ok()) status = folder->CheckUnchanged();
    if (!status.ok()) throw WeightReadError(std::string(status.message()));
  };
  const std::vector<Param> deferred = table.DeferProducts(read);
  LoadTarget all = target;
  all.params = table.params();
  all.checked = deferred;
  return ReadAll(*folder, all, ReportTo(meter, component));
}

absl::Status ReadRows(const WeightFolder& folder, std::span<const Param> params, const TensorShard& share,
                      at::ScalarType dtype, const ReadReport& report) {
  if (params.empty()) return absl::OkStatus();
  return ReadAll(folder,
                 {.params = params,
                  .shard = share,
                  .device = params.front().storage.device(),
                  .dtype = dtype,
                  .rows_of_all = true},
                 report);
}

}  // namespace tessera::models
