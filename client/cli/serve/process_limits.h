// Checks the limits of open files, processes and threads of a server or a node. One that starts below its needs would
// close connections or fail to start threads that it cannot work without.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/threads/task_limits.h"
#include "server/config/server_config.h"

namespace tessera::client {

struct ProcessNeeds {
  int64_t files = 0;  // minimum limit of open files for the serving process
  int64_t tasks = 0;  // processes and threads, including the workers on this host
};

// Returns the needs of a server with this configuration, from its groups, their ranks and their threads.
ProcessNeeds NeedsOf(const server::ServerConfig& config);

// Returns the needs of a node that lends this many places.
ProcessNeeds NeedsOfNode(int64_t places);

// Checks that the limit of open files, `most`, suffices. RESOURCE_EXHAUSTED with the limit's name, its value, what is
// needed and how to raise it.
absl::Status CheckFileLimit(int64_t needed, int64_t most);

// Raises the limit of open files as far as permitted, and checks it and the limits of processes and threads.
absl::Status PrepareProcessLimits(const ProcessNeeds& needs, const std::vector<base::TaskLimit>& limits);

}  // namespace tessera::client
