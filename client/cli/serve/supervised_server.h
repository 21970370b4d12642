// `tessera serve` as two processes: the one that was typed watches over the one that serves (supervisor.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/log_line.h"
#include "client/cli/session/interrupts.h"
#include "server/config/server_config.h"

namespace tessera::client {

// Serves in a child process, which is this program with its own arguments, until that ends; its exit code. Hands on
// what the child says, but for the ports of one that was started again where they are the same, and SIGHUP to the
// child. Every child has the configuration of this text, whatever becomes of its file, or what the child before it has
// told with NotifySupervisor.
absl::StatusOr<int> SuperviseServer(Interrupts& interrupts, const std::string& config, base::EventLog log);

// What a child is told.
struct SupervisorMessage {
  std::array<uint16_t, 3> ports = {};  // of http, grpc and admin that clients know from the child before; 0: not known
  server::ServerConfig config;

  bool IsAfterAnother() const { return ports != decltype(ports)(); }  // which has served
  void TakePorts(server::ServerConfig& config) const;
};

// In a child; nothing in a process that has no supervisor. To be called once, before there are other threads that read
// the environment.
absl::StatusOr<std::optional<SupervisorMessage>> ReadSupervisorMessage();

// In a child: the configuration for those that follow it.
void NotifySupervisor(const std::string& config);

}  // namespace tessera::client
