// One matrix product of a model's component: what an adapter can lie beside.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::models {

// How a matrix [out, in] is spread over the tensor axis: column splits `out`, row splits `in`.
enum class LinearRole { kReplicated, kColumn, kRow };

struct ProductSpec {
  std::string name;  // of the module, without ".weight"
  int64_t out = 0, in = 0;
  LinearRole role = LinearRole::kReplicated;
  std::vector<std::string> aliases;  // other names under which published files carry it
  // A row product whose input is several parts side by side: their numbers of channels, each split for itself. Empty:
  // one part.
  std::vector<int64_t> in_parts;
  bool elsewhere = false;  // of a block that is another rank's
};

}  // namespace tessera::models
