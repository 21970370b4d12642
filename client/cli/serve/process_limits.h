// The limits of open files, processes and threads that a server or a node needs: one that begins below them would close
// connections, or lack threads without which it does nothing.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "base/task_limits.h"
#include "server/config/server_config.h"

namespace tessera::client {

struct ProcessNeeds {
  int64_t files = 0;  // the least limit of open files of the process that serves
  int64_t tasks = 0;  // processes and threads, those of the workers of this host included
};

// Of a server with this configuration, by its groups, their ranks and their threads.
ProcessNeeds NeedsOf(const server::ServerConfig& config);

// Of a node that lends so many places.
ProcessNeeds NeedsOfNode(int64_t places);

// The limit of open files, `most`, suffices. RESOURCE_EXHAUSTED with its name, its value, what is needed and how it is
// raised.
absl::Status CheckFileLimit(int64_t needed, int64_t most);

// Raises the limit of open files as far as this process may, and checks it and those of processes and threads.
absl::Status PrepareProcessLimits(const ProcessNeeds& needs, const std::vector<base::TaskLimit>& limits);

}  // namespace tessera::client
