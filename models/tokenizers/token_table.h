// TokenTable maps texts of tokens to values; lookups need no copy of the text.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"

namespace tessera::models {

struct TokenTextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
};

template <typename T>
using TokenTable = absl::flat_hash_map<std::string, T, TokenTextHash, std::equal_to<>>;

}  // namespace tessera::models
