#include "tests/support/planted_bug.h"

#include <atomic>
#include <string_view>

#include "base/macros/planted.h"

namespace tessera {
namespace {

std::atomic<const char*> planted = "";

}  // namespace

bool base::Planted(const char* bug) { return std::string_view(planted.load()) == bug; }

PlantedBug::PlantedBug(const char* name) : before_(planted.exchange(name)) {}

PlantedBug::~PlantedBug() { planted = before_; }

}  // namespace tessera
