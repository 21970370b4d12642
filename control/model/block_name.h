// BlockName returns the transformer block that a tensor or module belongs to.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tessera::control {

// The prefix of a tensor's or module's name up to the block's number: "transformer_blocks.3" for
// "transformer_blocks.3.attn.to_q". Empty if the name belongs to no block.
inline std::string BlockName(absl::string_view name) {
  size_t begin = 0;
  for (size_t end = name.find('.'); end != absl::string_view::npos; end = name.find('.', begin)) {
    const bool number = end > begin && name.find_first_not_of("0123456789", begin) >= end;
    if (number) return std::string(name.substr(0, end));
    begin = end + 1;
  }
  return "";
}

}  // namespace tessera::control
