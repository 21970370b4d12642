// Runs `tessera serve` as two processes: the process that the user started supervises the one that serves
// (supervisor.h).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/log/log_line.h"
#include "client/cli/interrupts.h"
#include "server/config/server_config.h"

namespace tessera::client {

// Serves in a child process, which runs this program with the same arguments, until that ends; returns its exit code.
// Forwards the child's output, except for the ports of a restarted child if they are unchanged, and forwards SIGHUP to
// the child. Every child starts with the configuration `config`, even if its file has changed, or with the one that the
// previous child reported with NotifySupervisor.
absl::StatusOr<int> SuperviseServer(Interrupts& interrupts, const std::string& config, base::EventLog log);

// The message that a child receives from the supervisor.
struct SupervisorMessage {
  std::array<uint16_t, 3> ports =
      {};  // ports of http, grpc and admin that clients know from the previous child; 0: unknown
  server::ServerConfig config;

  bool IsAfterAnother() const { return ports != decltype(ports)(); }  // true if an earlier child has served
  void TakePorts(server::ServerConfig& config) const;
};

// Reads the message in a child; nullopt in a process without a supervisor. Call it once, before other threads read the
// environment.
absl::StatusOr<std::optional<SupervisorMessage>> ReadSupervisorMessage();

// In a child: sets the configuration of later children.
void NotifySupervisor(const std::string& config);

}  // namespace tessera::client
