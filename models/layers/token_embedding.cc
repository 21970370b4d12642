#include "models/layers/token_embedding.h"

#include <utility>

#include "kernels/ops.h"
#include "models/layers/quant_weight_of.h"

namespace tessera::models {

TokenEmbedding::TokenEmbedding(ParamTable& table, std::string name, int64_t tokens, int64_t width,
                               std::vector<std::string> aliases)
    : dtype_(table.dtype()),
      rows_(table.AddLookedUp({.name = std::move(name), .shape = {tokens, width}, .aliases = std::move(aliases)})) {}

at::Tensor TokenEmbedding::Forward(const at::Tensor& ids) const {
  if (!rows_.form) return at::embedding(rows_.values, ids);
  const at::Tensor chosen = ids.flatten();
  WeightRows found = rows_;
  found.values = rows_.values.index_select(0, chosen);
  if (rows_.scales.defined()) found.scales = rows_.scales.index_select(0, chosen);
  std::vector<int64_t> shape = ids.sizes().vec();
  shape.push_back(rows_.in);
  return kernels::WidenWeight(QuantWeightOf(found, ids.device()), dtype_).view(shape);
}

}  // namespace tessera::models
