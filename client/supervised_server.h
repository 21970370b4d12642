// `tessera serve` as two processes: the one that was typed watches over the one that serves (supervisor.h).
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "client/interrupts.h"
#include "server/config/server_config.h"
#include "server/log_line.h"

namespace tessera {

// Serves in a child process, which is this program with its own arguments, until that ends; its exit code. Hands on
// what the child says, but for the ports of one that was started again where they are the same.
absl::StatusOr<int> SuperviseServer(Interrupts& interrupts, EventLog log);

// In the child: the ports that the supervisor's clients know from the child before. INVALID_ARGUMENT for other text.
absl::Status TakePorts(const std::string& message, ServerConfig& config);

}  // namespace tessera
