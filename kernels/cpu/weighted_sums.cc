#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/cpu/operators.h"
#include "kernels/cpu/parallel.h"
#include "kernels/reference/digest.h"

namespace tessera::kernels::cpu {
namespace {

constexpr int64_t kGrain = 16384;  // numbers per range of a thread
constexpr int64_t kBlock = 1024;   // numbers that remain in the first-level cache while the inputs are read

// sum[0 … count) = the weighted sum of the inputs, starting at element `first`.
template <typename T>
void AddUp(at::ArrayRef<const T*> inputs, at::ArrayRef<double> weights, int64_t first, int64_t count, T* sum) {
  bool begun = false;
  for (size_t input = 0; input < inputs.size(); ++input) {
    if (weights[input] == 0) continue;
    const T weight = static_cast<T>(weights[input]);
    const T* x = inputs[input] + first;
    if (begun) {
      for (int64_t i = 0; i < count; ++i) sum[i] = sum[i] + weight * x[i];
    } else {
      for (int64_t i = 0; i < count; ++i) sum[i] = weight * x[i];
    }
    begun = true;
  }
  if (!begun) std::fill_n(sum, count, T(0));
}

struct State {
  bool finite = true;
  uint64_t digest = 0;
};

// Adds x[0 … count), which begins at element `first` of the tensor, to the state.
template <typename T>
void AddTo(State& state, const T* x, int64_t first, int64_t count) {
  using Word = std::conditional_t<sizeof(T) == sizeof(int64_t), int64_t, int32_t>;
  for (int64_t i = 0; i < count; ++i) {
    state.finite = state.finite && std::isfinite(x[i]);
    const auto word = static_cast<uint64_t>(static_cast<int64_t>(std::bit_cast<Word>(x[i])));
    state.digest += word * (static_cast<uint64_t>(first + i + 1) * kDigestSpread + 1);
  }
}

}  // namespace

std::vector<at::Tensor> WeightedSums(at::TensorList inputs, at::ArrayRef<double> weights,
                                     const std::optional<at::Tensor>& state) {
  std::vector<at::Tensor> dense, sums;
  for (const at::Tensor& x : inputs) dense.push_back(x.contiguous());
  for (size_t s = 0; s < weights.size() / inputs.size(); ++s) {
    sums.push_back(at::empty(inputs.front().sizes(), inputs.front().options()));
  }
  std::atomic<bool> finite = true;
  std::atomic<uint64_t> digest = 0;
  const auto add_up = [&]<typename T>(T*) {
    std::vector<const T*> from;
    std::vector<T*> to;
    for (const at::Tensor& x : dense) from.push_back(x.const_data_ptr<T>());
    for (const at::Tensor& sum : sums) to.push_back(sum.mutable_data_ptr<T>());
    ParallelFor(inputs.front().numel(), kGrain, [&](int64_t begin, int64_t end) {
      State of_range;
      for (int64_t first = begin; first < end; first += kBlock) {
        const int64_t count = std::min(kBlock, end - first);
        for (size_t s = 0; s < to.size(); ++s) {
          AddUp<T>(from, weights.slice(s * from.size(), from.size()), first, count, to[s] + first);
        }
        if (state.has_value()) AddTo(of_range, to[0] + first, first, count);
      }
      if (!of_range.finite) finite = false;
      digest += of_range.digest;
    });
  };
  if (inputs.front().scalar_type() == at::kDouble) {
    add_up(static_cast<double*>(nullptr));
  } else {
    add_up(static_cast<float*>(nullptr));
  }
  if (state.has_value()) {
    auto* words = state->mutable_data_ptr<int64_t>();
    if (!finite) words[0] = 0;
    words[1] = static_cast<int64_t>(static_cast<uint64_t>(words[1]) + digest);
  }
  return sums;
}

}  // namespace tessera::kernels::cpu
