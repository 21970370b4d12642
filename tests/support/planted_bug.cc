#include "tests/support/planted_bug.h"

namespace tessera {
namespace {

std::string chosen;

}  // namespace

PlantedBug::PlantedBug(const std::string& name) { chosen = name; }
PlantedBug::~PlantedBug() { chosen.clear(); }

bool Planted(const char* bug) { return chosen == bug; }

}  // namespace tessera
