// Holds the low-rank adapters (LoRA, Hu et al., 2021) of one component's matrix products. Serving loads them from
// files; training optimises them. The weights themselves are not changed.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera::parallel {

// Adds scale · (x Aᵀ) Bᵀ to y = x Wᵀ + b, in the dtype and on the device of W. Both tensors are leaf tensors that may
// require gradients. If W is sharded over the tensor axis, so are they: if W is split by outputs, a rank holds the rows
// of B for its outputs and all of A; if W is split by inputs, it holds the columns of A for its inputs and all of B.
struct LowRankFactors {
  at::Tensor a;      // [rank, in]
  at::Tensor b;      // [out, rank]
  double scale = 1;  // alpha / rank (or alpha / sqrt(rank)) times the user's scale
};

// The factors of one component, or of this rank's part of it, by the module's dotted name
// ("transformer_blocks.0.attn.to_q"). Factors of the same module are added up in the order of the calls of Add.
class AdapterFactors {
 public:
  using Modules = std::map<std::string, std::vector<LowRankFactors>, std::less<>>;

  // Factors with scale 0 are ignored, so that such an adapter changes no bit of any result.
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
