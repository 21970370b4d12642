// TokenEmbedding looks up the vectors of tokens in a table, which stays quantized if its file has it so.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "models/loading/param_table.h"

namespace tessera::models {

class TokenEmbedding {
 public:
  // The table's rows are of `width` values. `aliases` are other names of it in published files.
  TokenEmbedding(ParamTable& table, std::string name, int64_t tokens, int64_t width, std::vector<std::string> aliases);

  // ids [...] int64, on the device of the weights → [..., width]. Only the rows of these tokens are widened.
  at::Tensor Forward(const at::Tensor& ids) const;

 private:
  at::ScalarType dtype_;
  WeightRows rows_;
};

}  // namespace tessera::models
