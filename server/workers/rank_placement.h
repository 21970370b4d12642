// Assigns the ranks of a group to its devices and finds which ranks have the faster connections. Pure.
#pragma once

#include <optional>
#include <string>

#include "control/host/host_topology.h"
#include "parallel/plan/layout.h"

namespace tessera::server {

// Returns `devices` (comma-separated) reordered so that entry r is the device of rank r. Devices of one node are
// consecutive, and the ranks of one ring x ulysses x tensor group, which exchange most, are on one host where the
// numbers allow it; cfg and pipe span hosts. Returns `devices` unchanged if all are on one host or if their number
// differs from the layout's ranks.
std::string PlaceRanks(const parallel::Layout& layout, const std::string& devices);

// Returns the largest number n such that each block of n consecutive ranks is on one host and its members reach each
// other faster than the slowest pair of all `ranks`: on one host, within a socket, or over NVLink. n divides `ranks`.
// Returns nullopt where all connections are equally fast or unknown. `topology` is that of this host.
std::optional<int> NearRanks(const std::string& devices, int ranks, const control::HostTopology& topology);

}  // namespace tessera::server
