// HostResolver finds the addresses of a host name, so that they can be checked before one of them is connected to.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/fetch/ip_address.h"

namespace tessera::server {

// Returns all addresses of the host, at least one. `deadline` is a steady time (base/time/steady_time.h). NOT_FOUND if
// the host has none, DEADLINE_EXCEEDED, or UNAVAILABLE. Thread-safe.
using HostResolver =
    std::function<absl::StatusOr<std::vector<IpAddress>>(const std::string& host, absl::Duration deadline)>;

// Returns the resolver of the system (getaddrinfo), whose timeouts are not those of a caller: a lookup that takes
// longer than its caller waits continues on its own thread. At most kMaxLookups run at once.
HostResolver SystemResolver();

inline constexpr int kMaxLookups = 16;

}  // namespace tessera::server
