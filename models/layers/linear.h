// Linear is the matrix product of every model, and one of the two places where models are parallelised: its role
// determines how the weight is spread over the tensor axis.
#pragma once

#include <ATen/ATen.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/layers/product_input.h"
#include "models/loading/param_table.h"
#include "parallel/forward_context.h"
#include "parallel/functional.h"

namespace tessera::models {

// One matrix of a (possibly packed) Linear: its name within the scope and its number of output features.
struct LinearPart {
  std::string name;
  int64_t out;
  std::vector<std::string> aliases = {};  // of the name
};

struct LinearOptions {
  LinearRole role = LinearRole::kReplicated;
  bool bias = true;
  std::vector<int64_t> parts = {};  // see ParamSpec; of each matrix
  // For a column or row role: which tokens pass through the product if the tensor ranks share the tokens out
  // (ForwardContext::tensor_tokens). Absent if every tensor rank has the whole input.
  std::optional<parallel::TokenRows> tokens = parallel::TokenRows::kImage;
  bool is_identity_if_missing = false;  // see ParamSpec
};

inline constexpr LinearOptions kColumn{.role = LinearRole::kColumn};
inline constexpr LinearOptions kRow{.role = LinearRole::kRow};

// y = x Wᵀ + b. Column role: the rank holds rows of W and returns a slice of y. Row role: the rank holds columns of W
// and takes a slice of x; the sum over the group comes before the bias, which is added once. Low-rank factors of the
// context are added to each part: y += scale · (x Aᵀ) Bᵀ. With a row role x Aᵀ is summed over the group before B.
//
// If the tensor ranks share the tokens out, a column product takes a rank's share of the tokens and returns all of
// them, and a row product does the reverse: the tokens are gathered before the column product, and the row product's
// sum leaves each rank its share.
class Linear {
 public:
  Linear(const ParamScope& scope, int64_t in, int64_t out, const LinearOptions& options = {});

  // Computes several products of the same x as one: the parts' outputs are concatenated, and each part is sharded
  // separately.
  Linear(const ParamScope& scope, int64_t in, const std::vector<LinearPart>& parts, const LinearOptions& options = {});

  // x [..., in] → [..., out]. If tensor ranks share the tokens out, [b, n, in] → [b, n', out] with a different number
  // of tokens. Quantized rows require TakesQuantizedRows.
  at::Tensor Forward(const ProductInput& x, const parallel::ForwardContext& context) const;

  // Returns GELU (tanh approximation) of Forward. Not for the row role, where the sum comes later.
  at::Tensor ForwardGeluTanh(const ProductInput& x, const parallel::ForwardContext& context) const;

  // Whether every matrix of this product would quantize its input, and nothing else here reads it.
  bool TakesQuantizedRows(const parallel::ForwardContext& context) const;

 private:
  // One part of the product, to which factors can apply, and its range of this rank's output features.
  struct Part {
    std::string module;
    int64_t begin, count;
  };

  // Returns x Wᵀ + bias on this rank.
  at::Tensor Multiply(const ProductInput& input, const std::optional<at::Tensor>& bias) const;
  // Forward without adapters.
  at::Tensor Product(const at::Tensor& x, const parallel::ForwardContext& context) const;
  bool HasFactors(const parallel::ForwardContext& context) const;
  // The factors of a part. `first` is the first row of their A among the rows of all distinct A.
  struct LowRankPart {
    const parallel::LowRankFactors* factors;
    const Part* part;
    int64_t first;
    bool is_new;  // whether this is the first part with this A
  };
  std::vector<LowRankPart> LowRankParts(const parallel::AdapterFactors& adapters) const;
  // Returns x Aᵀ for every A.
  at::Tensor Down(const at::Tensor& x, const std::vector<LowRankPart>& parts,
                  const parallel::ForwardContext& context) const;
  at::Tensor Up(const std::vector<LowRankPart>& parts, const at::Tensor& down) const;
  // Returns y plus the contributions of the context's adapters; y itself may be modified.
  at::Tensor WithLowRank(at::Tensor y, const at::Tensor& x, const parallel::ForwardContext& context) const;

  // Returns how the tokens of this product are shared out; nothing if every rank has its whole input.
  std::optional<parallel::TokenRuns> RunsOf(const parallel::ForwardContext& context) const;
  // Enter converts what a rank holds between products to the input of a column product; Leave does the reverse for a
  // row product's partial sums.
  at::Tensor Enter(const at::Tensor& x, const parallel::ForwardContext& context) const;
  at::Tensor Leave(const at::Tensor& sum, const parallel::ForwardContext& context) const;

  LinearRole role_;
  std::optional<parallel::TokenRows> tokens_;
  std::vector<Part> parts_;
  std::shared_ptr<ProductWeight> weight_;  // shared with the table, which may pack it
  std::optional<at::Tensor> bias_;
};

}  // namespace tessera::models
