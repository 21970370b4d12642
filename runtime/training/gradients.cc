#include "runtime/training/gradients.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/macros/planted.h"
#include "models/precision.h"

namespace tessera::runtime {
namespace {

bool IsSplit(const models::Param& param) { return param.spec.role != models::LinearRole::kReplicated; }

// Returns the rule for this rank's part of a parameter.
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

Gradients::Gradients(std::span<const models::Param> params, const GradientsOptions& options)
    : sharded_(options.sharded) {
  std::vector<int64_t> elements;  // by flat
  std::vector<size_t> flat_of;    // by parameter
  for (const models::Param& param : params) {
    if (!param.storage.requires_grad()) continue;
    parts_[param.block].push_back(params_.size());
    params_.push_back(param);
    const models::PartialGradient partial = PartialOf(param, options.sequence_parallel);
    const bool on_all_stages = options.staged && param.block == models::Param::kNoBlock;
    auto flat = std::ranges::find_if(flats_, [&](const Flat& known) {
      return known.partial == partial && known.split == IsSplit(param) && known.on_all_stages == on_all_stages;
    });
    if (flat == flats_.end()) {
      flats_.push_back({.partial = partial, .split = IsSplit(param), .on_all_stages = on_all_stages, .values = {}});
      elements.push_back(0);
      flat = flats_.end() - 1;
    }
    flat_of.push_back(static_cast<size_t>(flat - flats_.begin()));
    elements[flat_of.back()] += RowsOfParam(params_.size() - 1).count() * RowElements(param);
  }
  for (size_t i = 0; i < flats_.size(); ++i) {
    const at::Tensor& like = params_.front().storage;
    flats_[i].values = at::zeros(
        {elements[i]}, like.options().dtype(models::AccumulationType(like.scalar_type())).requires_grad(false));
    elements[i] = 0;  // from here on the offset of the next parameter
  }
  for (size_t i = 0; i < params_.size(); ++i) {
    std::vector<int64_t> shape = params_[i].shape;
    shape[0] = RowsOfParam(i).count();
    const int64_t count = shape[0] * RowElements(params_[i]);
    int64_t& place = elements[flat_of[i]];
    of_params_.push_back(flats_[flat_of[i]].values.narrow(0, place, count).view(shape));
    place += count;
  }
}

models::RowSpan Gradients::RowsOfParam(size_t index) const {
  if (sharded_ == nullptr) return RowsOf(params_[index], 0, 1);
  return RowsOf(params_[index], sharded_->ranks().rank(), sharded_->ranks().size());
}

void Gradients::Collect(int part) {
  const auto of_part = parts_.find(part);
  if (of_part == parts_.end()) return;
  if (sharded_ != nullptr) {
    AddOwnRows(of_part->second);
  } else {
    for (const size_t i : of_part->second) {
      if (const at::Tensor& gradient = params_[i].storage.grad(); gradient.defined()) {
        of_params_[i] += params_[i].View(gradient);
      }
    }
  }
  for (const size_t i : of_part->second) at::Tensor(params_[i].storage).mutable_grad().reset();
}

void Gradients::Collect() {
  for (const auto& [part, indices] : parts_) Collect(static_cast<int>(part));
}

void Gradients::AddOwnRows(std::span<const size_t> indices) {
  parallel::Communicator& ranks = sharded_->ranks();
  const at::TensorOptions wide = flats_.front().values.options();
  std::vector<at::Tensor> rows;  // of all these parameters: those of the first rank, then of the next
  std::vector<int64_t> elements;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    elements.push_back(0);
    for (const size_t i : indices) {
      const models::RowSpan span = RowsOf(params_[i], rank, ranks.size());
      const int64_t count = span.count() * RowElements(params_[i]);
      const at::Tensor& gradient = params_[i].storage.grad();
      rows.push_back(gradient.defined() ? span.Of(params_[i].View(gradient)).to(wide.dtype()).flatten()
                                        : at::zeros({count}, wide));
      elements.back() += count;
    }
  }
  at::Tensor own = ranks.ReduceScatterSum(at::cat(rows), elements);
  if (base::Planted("sharded_gradient_not_reduced")) {
    own = at::cat(rows).split_with_sizes(elements)[static_cast<size_t>(ranks.rank())];
  }
  int64_t first = 0;
  for (const size_t i : indices) {
    of_params_[i] += own.narrow(0, first, of_params_[i].numel()).view(of_params_[i].sizes());
    first += of_params_[i].numel();
  }
}

void Gradients::Synchronize(const TrainingGroups& groups) {
  const auto sum = [](const Flat& flat, parallel::Communicator& group) {
    if (group.size() > 1 && flat.values.numel() > 0) group.Sum(flat.values, flat.values);
  };
  for (const Flat& flat : flats_) {
    if (flat.partial.sequence && !base::Planted("sequence_gradient_not_summed")) sum(flat, groups.model.sequence);
    if (IsPartOverTensor(flat.partial.tensor)) sum(flat, groups.model.tensor);
    if (flat.on_all_stages && !base::Planted("frame_gradient_of_one_stage")) sum(flat, groups.model.pipe);
    if (sharded_ == nullptr) sum(flat, groups.data);
  }
}

double Gradients::GlobalNorm(const TrainingGroups& groups) const {
  const auto sum = [&](double& squares, parallel::Communicator& group) {
    if (group.size() == 1) return;
    const at::Tensor all =
        at::full({1}, squares, at::TensorOptions(at::kDouble).device(flats_.front().values.device()));
    group.Sum(all, all);
    squares = all.item<double>();
  };
  const auto squares_of = [&](bool on_all_stages) {
    double once = 0, split = 0;  // sums of squares: of parameters that every tensor rank has, and of this rank's parts
    for (const Flat& flat : flats_) {
      if (flat.on_all_stages != on_all_stages) continue;
      const double norm =
          at::linalg_vector_norm(flat.values, 2, at::OptionalIntArrayRef(), false, at::kDouble).item<double>();
      (flat.split ? split : once) += norm * norm;
    }
    if (sharded_ != nullptr && !base::Planted("norm_of_own_rows")) {
      sum(once, sharded_->ranks());
      sum(split, sharded_->ranks());
    }
    if (!base::Planted("norm_of_own_shard")) sum(split, groups.model.tensor);
    return once + split;
  };
  double squares = squares_of(/*on_all_stages=*/false);
  if (!base::Planted("norm_of_own_stage")) sum(squares, groups.model.pipe);
  if (groups.model.pipe.size() > 1) squares += squares_of(/*on_all_stages=*/true);
  return std::sqrt(squares);
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
