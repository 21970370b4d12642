#include "runtime/training/gradients.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/planted.h"
#include "models/precision.h"

namespace tessera::runtime {
namespace {

bool IsSplit(const models::Param& param) { return param.spec.role != models::LinearRole::kReplicated; }

// Of this rank's part of a parameter.
models::PartialGradient PartialOf(const models::Param& param, bool sequence_parallel) {
  models::PartialGradient partial = param.spec.partial;
  if (IsSplit(param) || (partial.tensor == models::OverTensor::kTokens && !sequence_parallel)) {
    partial.tensor = models::OverTensor::kWhole;
  }
  return partial;
}

bool IsPartOverTensor(models::OverTensor rule) {
  switch (rule) {
    case models::OverTensor::kWhole:
      return false;
    case models::OverTensor::kTokens:
      return !base::Planted("token_norm_gradient_not_summed");
    case models::OverTensor::kHeads:
      break;
  }
  return !base::Planted("head_norm_gradient_not_summed");
}

}  // namespace

Gradients::Gradients(std::span<const models::Param> params, bool sequence_parallel) {
  std::vector<int64_t> elements;  // of each flat
  std::vector<size_t> flat_of;    // by parameter
  for (const models::Param& param : params) {
    if (!param.storage.requires_grad()) continue;
    params_.push_back(param);
    const models::PartialGradient partial = PartialOf(param, sequence_parallel);
    auto flat = std::ranges::find_if(
        flats_, [&](const Flat& known) { return known.partial == partial && known.split == IsSplit(param); });
    if (flat == flats_.end()) {
      flats_.push_back({.partial = partial, .split = IsSplit(param), .values = {}});
      elements.push_back(0);
      flat = flats_.end() - 1;
    }
    flat_of.push_back(static_cast<size_t>(flat - flats_.begin()));
    elements[flat_of.back()] += param.Value().numel();
  }
  for (size_t i = 0; i < flats_.size(); ++i) {
    const at::Tensor& like = params_.front().storage;
    flats_[i].values = at::zeros(
        {elements[i]}, like.options().dtype(models::AccumulationType(like.scalar_type())).requires_grad(false));
    elements[i] = 0;  // from here on the next parameter's place
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    const int64_t count = params_[i].Value().numel();
    int64_t& place = elements[flat_of[i]];
    of_params_.push_back(flats_[flat_of[i]].values.narrow(0, place, count).view(params_[i].Value().sizes()));
    place += count;
  }
}

void Gradients::Collect() {
  for (size_t i = 0; i < params_.size(); ++i) {
    if (const at::Tensor& gradient = params_[i].storage.grad(); gradient.defined()) {
      of_params_[i] += params_[i].View(gradient);
    }
  }
  for (const models::Param& param : params_) at::Tensor(param.storage).mutable_grad().reset();
}

void Gradients::Synchronize(const TrainingGroups& groups) {
  const auto sum = [](const Flat& flat, parallel::Communicator& group) {
    if (group.size() > 1 && flat.values.numel() > 0) group.Sum(flat.values, flat.values);
  };
  for (const Flat& flat : flats_) {
    if (flat.partial.sequence && !base::Planted("sequence_gradient_not_summed")) sum(flat, groups.model.sequence);
    if (IsPartOverTensor(flat.partial.tensor)) sum(flat, groups.model.tensor);
    sum(flat, groups.data);
  }
}

double Gradients::GlobalNorm(const TrainingGroups& groups) const {
  double once = 0, split = 0;  // sums of squares: of what every tensor rank has, and of this rank's parts
  for (const Flat& flat : flats_) {
    const double norm =
        at::linalg_vector_norm(flat.values, 2, at::OptionalIntArrayRef(), false, at::kDouble).item<double>();
    (flat.split ? split : once) += norm * norm;
  }
  if (groups.model.tensor.size() > 1 && !base::Planted("norm_of_own_shard")) {
    const at::Tensor sum = at::full({1}, split, at::TensorOptions(at::kDouble).device(flats_.front().values.device()));
    groups.model.tensor.Sum(sum, sum);
    split = sum.item<double>();
  }
  return std::sqrt(once + split);
}

void Gradients::Clip(double norm, double max_norm) {
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return;
  for (const Flat& flat : flats_) flat.values.mul_(factor);
}

void Gradients::Clear() {
  for (const Flat& flat : flats_) flat.values.zero_();
}

}  // namespace tessera::runtime
