#include "models/loading/streamed_weights.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <string>
#include <utility>

#include "models/loading/deferred_weight.h"
#include "models/loading/storage_memory.h"
#include "models/loading/weight_loader.h"
#include "models/loading/weight_memory.h"

namespace tessera::models {

StreamedWeights::StreamedWeights(std::shared_ptr<const WeightFolder> folder, const ParamTable& table)
    : folder_(std::move(folder)), dtype_(table.dtype()) {
  for (const Param& param : table.params()) {
    Part& part = parts_[param.block];
    part.params.push_back(param);
    AddStorage(part, param.storage);
    if (param.scales.defined()) AddStorage(part, param.scales);
  }
}

void StreamedWeights::AddStorage(Part& part, const at::Tensor& values) {
  const auto is_known = [&](const Storage& known) { return known.values.storage().is_alias_of(values.storage()); };
  if (std::ranges::any_of(part.storages, is_known)) return;
  part.storages.push_back({.values = values.variable_data(), .bytes = static_cast<int64_t>(values.nbytes())});
}

void StreamedWeights::Bring(int part) {
  Part& brought = parts_.at(part);
  if (brought.uses++ > 0) return;
  // The caller may be in inference mode, in which tensors of the ordinary one cannot be written to.
  const c10::InferenceMode ordinary(false);
  const at::NoGradGuard no_gradients;
  const WeightPages pages;
  for (const Storage& storage : brought.storages) AllocateStorage(storage.values, storage.bytes);
  absl::Status status = ReadRows(*folder_, brought.params, {}, dtype_);
  if (status.ok()) status = folder_->CheckUnchanged();
  if (status.ok()) return;
  Release(part);
  throw WeightReadError(std::string(status.message()));
}

void StreamedWeights::Release(int part) {
  Part& brought = parts_.at(part);
  TORCH_CHECK(brought.uses > 0, "part ", part, " of the model is released more often than it was requested");
  if (--brought.uses > 0) return;
  for (const Storage& storage : brought.storages) FreeStorage(storage.values);
}

}  // namespace tessera::models
