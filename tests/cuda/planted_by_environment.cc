// The bug that is planted in a worker is the one that TESSERA_PLANTED_BUG names.
#include <cstdlib>
#include <string_view>

#include "base/planted.h"

namespace tessera::base {

bool Planted(const char* bug) {
  static const char* const planted = std::getenv("TESSERA_PLANTED_BUG");
  return planted != nullptr && std::string_view(planted) == bug;
}

}  // namespace tessera::base
