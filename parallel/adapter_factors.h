// Low-rank adapters (LoRA, Hu et al., 2021) beside the matrix products of one component: what serving adds up from
// files and what training optimises. The weights themselves stay as they are.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::parallel {

// y += scale · (x Aᵀ) Bᵀ beside y = x Wᵀ + b, in the dtype and on the device of W. Both are leaf tensors that may
// require gradients. Where W is sharded over the tensor axis so are they: with W split by outputs a rank holds the rows
// of B that belong to its outputs and all of A, with W split by inputs the columns of A and all of B.
struct LowRankFactors {
  at::Tensor a;      // [rank, in]
  at::Tensor b;      // [out, rank]
  double scale = 1;  // alpha / rank (or alpha / sqrt(rank)) times the user's scale
};

// The factors of one component, or of this rank's part of it, by the module's dotted name
// ("transformer_blocks.0.attn.to_q"). Several of one module add up in the order in which they were added.
class AdapterFactors {
 public:
  using Modules = std::map<std::string, std::vector<LowRankFactors>, std::less<>>;

  // With scale 0 nothing is added, so that such an adapter changes no bit of any result.
  void Add(const std::string& module, LowRankFactors factors) {
    if (factors.scale != 0) modules_[module].push_back(std::move(factors));
  }

  // Null if no factors belong to the module.
  const std::vector<LowRankFactors>* Find(std::string_view module) const {
    const auto found = modules_.find(module);
    return found == modules_.end() ? nullptr : &found->second;
  }

  bool empty() const { return modules_.empty(); }
  const Modules& modules() const { return modules_; }

 private:
  Modules modules_;
};

}  // namespace tessera::parallel
