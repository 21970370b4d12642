// The one matrix product of every model, and the first of the two doors for parallelism: its role says how the weight
// is spread over the tensor axis.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/loading/param_table.h"
#include "parallel/forward_context.h"
#include "parallel/functional.h"

namespace tessera::models {

// One matrix of a (possibly packed) Linear: its name below the scope and its number of output features.
struct LinearPart {
  std::string name;
  int64_t out;
  std::vector<std::string> aliases = {};  // of the name
};

struct LinearOptions {
  LinearRole role = LinearRole::kReplicated;
  bool bias = true;
  std::vector<int64_t> in_parts = {};  // as ParamSpec has it
  // Of a column or row role: which tokens go through it, where the tensor ranks share these out
  // (ForwardContext::tensor_tokens). Absent: what every tensor rank has whole.
  std::optional<parallel::TokenRows> tokens = parallel::TokenRows::kImage;
};

// y = x Wᵀ + b.  Column: the rank holds rows of W and gets a slice of y. Row: the rank holds columns of W, takes a
// slice of x, and the sum over the group comes before the bias, which is added once. Low-rank factors of the context
// lie beside each part: y += scale · (x Aᵀ) Bᵀ. With a row role x Aᵀ is summed over the group, before B.
//
// Where the tensor ranks share out the tokens, a column product takes a rank's own tokens and gives all of them, and a
// row product the other way round: the tokens are gathered before the one, and the other's sum leaves each rank its
// own.
class Linear {
 public:
  Linear(const ParamScope& scope, int64_t in, int64_t out, const LinearOptions& options = {});

  // Several products of the same x in one: the parts' outputs lie one after another, each sharded for itself.
  Linear(const ParamScope& scope, int64_t in, const std::vector<LinearPart>& parts, const LinearOptions& options = {});

  // x [..., in] → [..., out]; [b, n, in] → [b, n, out] with an n of its own where tensor ranks share out tokens.
  at::Tensor Forward(const at::Tensor& x, const parallel::ForwardContext& context) const;

  // GELU (tanh approximation) of Forward; not for the row role, whose sum comes later.
  at::Tensor ForwardGeluTanh(const at::Tensor& x, const parallel::ForwardContext& context) const;

 private:
  // What factors lie beside: one part of the product, and its features of this rank's y.
  struct Part {
    std::string module;
    int64_t begin, count;
  };

  // The weight, brought to the device of x where it waits in the host's memory.
  at::Tensor ValuesFor(const at::Tensor& x) const;
  // x Wᵀ + bias on this rank.
  at::Tensor Multiply(const at::Tensor& x, const std::optional<at::Tensor>& bias) const;
  // Without adapters.
  at::Tensor Product(const at::Tensor& x, const parallel::ForwardContext& context) const;
  bool HasFactors(const parallel::ForwardContext& context) const;
  // Factors beside a part: their A has its ranks from `first` on among those of all different A.
  struct LowRankPart {
    const parallel::LowRankFactors* factors;
    const Part* part;
    int64_t first;
    bool is_new;  // of several parts with one A the first
  };
  std::vector<LowRankPart> LowRankParts(const parallel::AdapterFactors& adapters) const;
  // x Aᵀ for every A.
  at::Tensor Down(const at::Tensor& x, const std::vector<LowRankPart>& parts,
                  const parallel::ForwardContext& context) const;
  at::Tensor Up(const std::vector<LowRankPart>& parts, const at::Tensor& down) const;
  // y with what the context's adapters add; y itself may change.
  at::Tensor WithLowRank(at::Tensor y, const at::Tensor& x, const parallel::ForwardContext& context) const;

  // How the tokens of this product are shared out; none where every rank has what goes through it.
  std::optional<parallel::TokenRuns> RunsOf(const parallel::ForwardContext& context) const;
  // From what a rank holds between products to what a column product reads, and from a row product's partial sums back.
  at::Tensor Enter(const at::Tensor& x, const parallel::ForwardContext& context) const;
  at::Tensor Leave(const at::Tensor& sum, const parallel::ForwardContext& context) const;

  LinearRole role_;
  std::optional<parallel::TokenRows> tokens_;
  std::vector<Part> parts_;
  std::shared_ptr<ProductWeight> weight_;  // shared with the table, which may pack it
  std::optional<at::Tensor> bias_;
};

}  // namespace tessera::models
