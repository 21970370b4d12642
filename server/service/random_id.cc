#include "server/service/random_id.h"

#include <sys/random.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera {
namespace {

constexpr size_t kRandomBytes = 16;

}  // namespace

std::string RandomId(absl::string_view prefix) {
  char random[kRandomBytes];
  if (getrandom(random, sizeof(random), 0) != sizeof(random)) std::abort();  // cannot be short below 256 bytes
  return absl::StrCat(prefix, absl::BytesToHexString(absl::string_view(random, sizeof(random))));
}

bool IsIdOf(absl::string_view prefix, absl::string_view id) {
  return absl::ConsumePrefix(&id, prefix) && id.size() == 2 * kRandomBytes &&
         std::all_of(id.begin(), id.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

}  // namespace tessera
