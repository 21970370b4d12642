// On which of its devices each rank of a group runs, and which ranks are near each other there. Pure.
#pragma once

#include <optional>
#include <string>

#include "control/host_topology.h"
#include "parallel/plan/layout.h"

namespace tessera::server {

// The devices, with commas between them, in the order of the ranks: those of one node follow each other, and the ranks
// of one ring x Ulysses x tensor group, which exchange most, are on one host where the numbers allow it; cfg and pipe
// go across hosts. Devices of this host alone, and lists of another length than the layout has ranks, stay as they are.
std::string PlaceRanks(const parallel::Layout& layout, const std::string& devices);

// The largest number of ranks that follow each other on these devices, those of a host together, and reach each other
// faster than the slowest two of all `ranks` do: on one host, within a socket, or over NVLink. A divisor of `ranks`;
// nullopt where all are alike, or nobody tells. `topology` is this host's.
std::optional<int> NearRanks(const std::string& devices, int ranks, const control::HostTopology& topology);

}  // namespace tessera::server
