#include "client/supervised_server.h"

#include <signal.h>

#include <array>
#include <boost/json.hpp>
#include <cstdio>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "server/supervision/supervisor.h"

namespace tessera {
namespace {

using Ports = std::array<uint16_t, 3>;  // of http, grpc and admin; 0: not known

// Of the line in which a server tells its ports; nothing for another line.
std::optional<Ports> PortsIn(const std::string& line) {
  boost::json::error_code error;
  const boost::json::value value = boost::json::parse(line, error);
  const boost::json::object* told = error ? nullptr : value.if_object();
  if (told == nullptr) return std::nullopt;
  Ports ports = {};
  for (const auto& [name, port] : {std::pair("http", &ports[0]), {"grpc", &ports[1]}, {"admin", &ports[2]}}) {
    const boost::json::value* number = told->if_contains(name);
    if (number == nullptr) return std::nullopt;
    *port = number->to_number<uint16_t>(error);
    if (error) return std::nullopt;
  }
  return ports;
}

}  // namespace

absl::StatusOr<int> SuperviseServer(Interrupts& interrupts, EventLog log) {
  Ports ports = {};
  Supervisor supervisor({.message = [&] { return absl::StrJoin(ports, " "); },
                         .said =
                             [&](const std::string& line) {
                               if (const std::optional<Ports> told = PortsIn(line); told.has_value()) {
                                 if (std::exchange(ports, *told) == *told) return;
                               }
                               std::fputs((line + "\n").c_str(), stdout);
                               std::fflush(stdout);
                             },
                         .log = std::move(log)});
  const Interrupts::Reaction reaction(interrupts, [&] { supervisor.Stop(SIGTERM); });
  return supervisor.Run();
}

absl::Status TakePorts(const std::string& message, ServerConfig& config) {
  const std::vector<std::string> words = absl::StrSplit(message, ' ');
  const std::array listeners = {&config.http, &config.grpc, &config.admin};
  if (words.size() != listeners.size()) return absl::InvalidArgumentError("the supervisor names no ports");
  for (size_t i = 0; i < listeners.size(); ++i) {
    uint32_t port = 0;
    if (!absl::SimpleAtoi(words[i], &port) || port > 65535) {
      return absl::InvalidArgumentError("the supervisor names a port that is none");
    }
    if (port != 0) listeners[i]->port = static_cast<uint16_t>(port);
  }
  return absl::OkStatus();
}

}  // namespace tessera
