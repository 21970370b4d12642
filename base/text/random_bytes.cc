#include "base/text/random_bytes.h"

#include <sys/random.h>

#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace tessera::base {

void FillWithRandomBytes(void* bytes, size_t count) {
  if (getrandom(bytes, count, 0) != static_cast<ssize_t>(count)) std::abort();
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  FillWithRandomBytes(bytes.data(), count);
  return bytes;
}

std::string RandomId(absl::string_view prefix) { return absl::StrCat(prefix, absl::BytesToHexString(RandomBytes(16))); }

}  // namespace tessera::base
