#include "models/loading/sharded_weights.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "base/macros/planted.h"
#include "base/macros/status_macros.h"
#include "models/loading/storage_memory.h"
#include "models/loading/weight_loader.h"

namespace tessera::models {
namespace {

constexpr char kScales[] = ".scales";

// Returns the packed rows, or their scales, as a parameter whose elements are bytes or numbers.
Param PackedParam(const Param& param) {
  Param packed = param;
  packed.shape = {param.shape[0], param.storage.size(1)};
  packed.form.reset();
  packed.scales = at::Tensor();
  return packed;
}
Param ScaleParam(const Param& param) {
  Param scales = PackedParam(param);
  scales.spec.name += kScales;
  scales.storage = param.scales;
  scales.shape[1] = param.scales.size(1);
  return scales;
}

}  // namespace

bool AreTaken(std::span<const Param> params) {
  return std::ranges::any_of(params, [](const Param& param) {
    return !param.waiting.defined() && param.storage.storage().nbytes() < param.storage.nbytes();
  });
}

ShardedWeights::ShardedWeights(std::span<const Param> params, parallel::Communicator& ranks)
    : ShardedWeights(params, ranks, Rows::kTaken) {}

ShardedWeights::ShardedWeights(std::span<const Param> params, parallel::Communicator& ranks, Rows rows)
    : ranks_(ranks) {
  TORCH_CHECK(rows == Rows::kUnread || !AreTaken(params), "the weights are sharded already");
  const at::NoGradGuard no_gradients;
  for (const Param& param : params) {
    AddParam(parts_[param.block], param.form ? PackedParam(param) : param);
    if (param.scales.defined()) AddParam(parts_[param.block], ScaleParam(param));
  }
  for (auto& [block, part] : parts_) {
    for (auto& [dtype, message] : part.messages) Keep(message, rows);
    for (const Storage& storage : part.storages) FreeStorage(storage.values);
  }
}

void ShardedWeights::AddParam(Part& part, const Param& param) {
  const auto known = std::ranges::find_if(part.storages, [&](const Storage& storage) {
    return storage.values.storage().is_alias_of(param.storage.storage());
  });
  Message& message = part.messages[param.storage.scalar_type()];
  message.storage_of.push_back(static_cast<size_t>(known - part.storages.begin()));
  message.params.push_back(param);
  if (known == part.storages.end()) {
    part.storages.push_back(
        {.values = param.storage.variable_data(), .bytes = static_cast<int64_t>(param.storage.nbytes())});
  }
}

void ShardedWeights::Keep(Message& message, Rows rows) {
  const int size = ranks_.size(), rank = ranks_.rank();
  message.elements.assign(static_cast<size_t>(size), 0);
  std::vector<at::Tensor> taken;
  for (const Param& param : message.params) {
    for (int r = 0; r < size; ++r) {
      message.elements[static_cast<size_t>(r)] += RowsOf(param, r, size).count() * RowElements(param);
    }
    if (rows == Rows::kTaken) taken.push_back(RowsOf(param, rank, size).Of(param.Value().detach()).flatten());
  }
  message.own = rows == Rows::kTaken ? at::cat(taken)
                                     : at::empty({message.elements[static_cast<size_t>(rank)]},
                                                 message.params.front().storage.options().requires_grad(false));
  int64_t first = 0;
  for (const Param& param : message.params) {
    std::vector<int64_t> shape = param.shape;
    shape[0] = RowsOf(param, rank, size).count();
    const int64_t elements = shape[0] * RowElements(param);
    own_rows_[param.spec.name] = message.own.narrow(0, first, elements).view(shape);
    first += elements;
  }
}

absl::StatusOr<std::unique_ptr<ShardedWeights>> ShardedWeights::Load(const WeightFolder& folder,
                                                                     const ParamTable& table,
                                                                     const std::string& component,
                                                                     parallel::Communicator& ranks, LoadMeter* meter) {
  RETURN_IF_ERROR(CheckWeights(folder, table, component));
  std::unique_ptr<ShardedWeights> weights(new ShardedWeights(table.params(), ranks, Rows::kUnread));
  std::vector<Param> rows = table.params();
  for (Param& param : rows) {
    if (param.scales.defined()) param.scales = weights->own_rows_.at(param.spec.name + kScales);
    param.storage = weights->OwnRows(param);
    param.offset = 0;
    param.shape[0] = param.storage.size(0);
  }
  RETURN_IF_ERROR(
      ReadRows(folder, rows, {.rank = ranks.rank(), .size = ranks.size()}, table.dtype(), ReportTo(meter, component)));
  return weights;
}

int64_t ShardedWeights::own_bytes() const {
  int64_t bytes = 0;
  for (const auto& [block, part] : parts_) {
    for (const auto& [dtype, message] : part.messages) bytes += static_cast<int64_t>(message.own.nbytes());
  }
  return bytes;
}

void ShardedWeights::Gather(const Part& part, const Message& message) {
  const at::Tensor all = ranks_.AllGather(message.own, message.elements);
  int64_t first = 0;
  for (int rank = 0; rank < ranks_.size(); ++rank) {
    for (size_t i = 0; i < message.params.size(); ++i) {
      const Param& param = message.params[i];
      const at::Tensor place =
          RowsOf(param, rank, ranks_.size()).Of(param.View(part.storages[message.storage_of[i]].values));
      place.copy_(all.narrow(0, first, place.numel()).view(place.sizes()));
      if (base::Planted("sharded_scales_lost") && all.scalar_type() == at::kFloat && rank != ranks_.rank())
        place.zero_();
      first += place.numel();
    }
  }
}

void ShardedWeights::Bring(int part) {
  Part& brought = parts_.at(part);
  if (brought.uses++ > 0) return;
  const bool stale = base::Planted("sharded_weights_stale");
  if (stale && brought.storages.front().values.storage().nbytes() > 0) return;
  // The caller may be in inference mode, whose tensors cannot be used to compute gradients.
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_gradients;
  for (const Storage& storage : brought.storages) AllocateStorage(storage.values, storage.bytes);
  for (const auto& [dtype, message] : brought.messages) Gather(brought, message);
}

void ShardedWeights::Release(int part) {
  Part& brought = parts_.at(part);
  TORCH_CHECK(brought.uses > 0, "part ", part, " of the model is released more often than it was requested");
  if (--brought.uses > 0 || base::Planted("sharded_weights_stale")) return;
  for (const Storage& storage : brought.storages) FreeStorage(storage.values);
}

}  // namespace tessera::models
