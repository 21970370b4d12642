// Unpredictable bytes and names from the operating system.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"

namespace tessera::base {

// At most 256 bytes, which the system never refuses.
void FillWithRandomBytes(void* bytes, size_t count);
std::string RandomBytes(size_t count);

template <typename Number>
Number RandomNumber() {
  static_assert(std::is_unsigned_v<Number>);
  Number number;
  FillWithRandomBytes(&number, sizeof(number));
  return number;
}

// Returns `prefix` followed by 128 random bits in lower-case hexadecimal: "job_5f0c…".
std::string RandomId(absl::string_view prefix);

}  // namespace tessera::base
