// The golden runner, with the bug that the environment variable TESSERA_PLANTED_BUG names.
#include "base/planted.h"

#include <cstdlib>
#include <cstring>

#include "tests/golden_runner/golden_case.h"

namespace tessera {

bool Planted(const char* bug) {
  const char* chosen = std::getenv("TESSERA_PLANTED_BUG");
  return chosen != nullptr && std::strcmp(chosen, bug) == 0;
}

}  // namespace tessera

int main(int argc, char** argv) { return tessera::golden::Main(argc, argv); }
