// Describes one matrix product of a model's component, to which an adapter can apply.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::models {

// How a matrix [out, in] is spread over the tensor axis: kColumn splits `out`, kRow splits `in`.
enum class LinearRole { kReplicated, kColumn, kRow };

struct ProductSpec {
  std::string name;  // of the module, without ".weight"
  int64_t out = 0, in = 0;
  LinearRole role = LinearRole::kReplicated;
  std::vector<std::string> aliases;  // other names that published files use for it
  // For a column product whose output, or a row product whose input, is several parts side by side: the number of
  // channels of each part; each part is split separately. Empty if there is one part.
  std::vector<int64_t> parts;
  bool elsewhere = false;  // whether it is in a block of another rank
};

}  // namespace tessera::models
