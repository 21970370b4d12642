// On which of its devices each rank of a group runs. Pure.
#pragma once

#include <string>

#include "parallel/plan/layout.h"

namespace tessera::server {

// The devices, with commas between them, in the order of the ranks: those of one node follow each other, and the ranks
// of one ring x Ulysses x tensor group, which exchange most, are on one host where the numbers allow it; cfg and pipe
// go across hosts. Devices of this host alone, and lists of another length than the layout has ranks, stay as they are.
std::string PlaceRanks(const parallel::Layout& layout, const std::string& devices);

}  // namespace tessera::server
