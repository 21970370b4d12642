// Compares gradients of a function that runs on several ranks with central differences.
#pragma once

#include <c10/util/irange.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <vector>

#include "parallel/functional.h"
#include "tests/support/random_tensor.h"
#include "tests/support/thread_ranks.h"

namespace tessera {

// Maps this rank's tensor to its result.
using Functional = std::function<at::Tensor(const at::Tensor&, parallel::Communicator&)>;

// Returns a loss that weights every element of `y` differently, and differently on each rank.
inline at::Tensor Loss(const at::Tensor& y, int rank) { return (y * y * Random(y.sizes(), 1000 + rank)).sum(); }

// Returns the sum of all ranks' losses for the ranks' inputs `xs`.
inline double SumOfLosses(const std::vector<at::Tensor>& xs, const Functional& functional) {
  std::vector<double> losses(xs.size());
  RunRanks(static_cast<int>(xs.size()), [&](ThreadRank& rank) {
    losses[rank.rank()] = Loss(functional(xs[rank.rank()], rank.world()), rank.rank()).item<double>();
  });
  return std::accumulate(losses.begin(), losses.end(), 0.0);
}

inline std::vector<at::Tensor> Gradients(const std::vector<at::Tensor>& xs, const Functional& functional) {
  std::vector<at::Tensor> gradients(xs.size());
  RunRanks(static_cast<int>(xs.size()), [&](ThreadRank& rank) {
    const at::Tensor x = xs[rank.rank()].clone().requires_grad_(true);
    Loss(functional(x, rank.world()), rank.rank()).backward();
    gradients[rank.rank()] = x.grad();
  });
  return gradients;
}

// Returns the largest difference between the gradients and central differences of the summed loss. `replicated`: all
// ranks hold the same tensor, which is changed on all of them together.
inline double GradientError(const std::vector<at::Tensor>& xs, bool replicated, const Functional& functional) {
  const double step = 1e-5;
  const std::vector<at::Tensor> gradients = Gradients(xs, functional);
  double worst = 0;
  for (const size_t r : c10::irange(replicated ? size_t{1} : xs.size()))
    for (const int64_t i : c10::irange(xs[r].numel())) {
      const auto loss_at = [&](double shift) {
        std::vector<at::Tensor> moved = xs;
        for (const size_t other : c10::irange(xs.size())) {
          if (!replicated && other != r) continue;
          moved[other] = xs[other].clone();
          moved[other].view(-1)[i] += shift;
        }
        return SumOfLosses(moved, functional);
      };
      const double difference = (loss_at(step) - loss_at(-step)) / (2 * step);
      for (const size_t other : c10::irange(xs.size()))
        if (replicated || other == r)
          worst = std::max(worst, std::abs(difference - gradients[other].view(-1)[i].item<double>()));
    }
  return worst;
}

// Central differences with this step are accurate to 1e-10 of the loss's second derivative, and rounding adds 1e-10.
inline constexpr double kGradientTolerance = 1e-7;

inline std::vector<at::Tensor> OnePerRank(int ranks, const std::function<at::Tensor(int)>& make) {
  std::vector<at::Tensor> tensors;
  for (const int r : c10::irange(ranks)) tensors.push_back(make(r));
  return tensors;
}

}  // namespace tessera
