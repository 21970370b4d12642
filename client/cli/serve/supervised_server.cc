#include "client/cli/serve/supervised_server.h"

#include <signal.h>

#include <boost/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/files/standard_streams.h"
#include "base/macros/status_macros.h"
#include "client/cli/output/json_line.h"
#include "server/supervision/supervisor.h"

namespace tessera::client {
namespace {

constexpr char kConfig[] = "configuration";  // key in the line for the supervisor

using Ports = std::array<uint16_t, 3>;  // of http, grpc and admin; 0: unknown

// Parses the line in which a server reports its ports; nullopt for another line.
std::optional<Ports> PortsIn(const std::string& line) {
  boost::json::error_code error;
  const boost::json::value value = boost::json::parse(line, error);
  const boost::json::object* object = error ? nullptr : value.if_object();
  if (object == nullptr) return std::nullopt;
  Ports ports = {};
  for (const auto& [name, port] : {std::pair("http", &ports[0]), {"grpc", &ports[1]}, {"admin", &ports[2]}}) {
    const boost::json::value* number = object->if_contains(name);
    if (number == nullptr) return std::nullopt;
    *port = number->to_number<uint16_t>(error);
    if (error) return std::nullopt;
  }
  return ports;
}

// Parses the line in which a server reports its configuration; nullopt for another line.
std::optional<std::string> ConfigIn(const std::string& line) {
  boost::json::error_code error;
  const boost::json::value value = boost::json::parse(line, error);
  const boost::json::object* object = error ? nullptr : value.if_object();
  const boost::json::value* config = object == nullptr ? nullptr : object->if_contains(kConfig);
  if (config == nullptr || !config->is_string()) return std::nullopt;
  return std::string(config->get_string());
}

}  // namespace

absl::StatusOr<int> SuperviseServer(Interrupts& interrupts, const std::string& config, base::EventLog log) {
  Ports ports = {};
  std::string text = config;
  // The same thread starts the children and reads their output.
  server::Supervisor supervisor({.message = [&] { return absl::StrCat(absl::StrJoin(ports, " "), "\n", text); },
                                 .said =
                                     [&](const std::string& line) {
                                       if (std::optional<std::string> configuration = ConfigIn(line);
                                           configuration.has_value()) {
                                         text = *std::move(configuration);
                                         return;
                                       }
                                       if (const std::optional<Ports> reported = PortsIn(line); reported.has_value()) {
                                         if (std::exchange(ports, *reported) == *reported) return;
                                       }
                                       base::Announce(line);
                                     },
                                 .log = std::move(log)});
  const Interrupts::HangUps hang_ups(interrupts, [&] { supervisor.HangUp(); });
  const Interrupts::Reaction reaction(interrupts, [&] { supervisor.Stop(SIGTERM); });
  return supervisor.Run();
}

void SupervisorMessage::TakePorts(server::ServerConfig& config) const {
  const std::array listeners = {&config.listen.http, &config.listen.grpc, &config.listen.admin};
  for (size_t i = 0; i < listeners.size(); ++i) {
    if (ports[i] != 0) listeners[i]->port = ports[i];
  }
}

absl::StatusOr<std::optional<SupervisorMessage>> ReadSupervisorMessage() {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, server::MessageOfSupervisor());
  if (!text.has_value()) return std::nullopt;
  const std::pair<std::string, std::string> parts = absl::StrSplit(*text, absl::MaxSplits('\n', 1));
  const std::vector<std::string> words = absl::StrSplit(parts.first, ' ');
  SupervisorMessage message;
  if (words.size() != message.ports.size()) return absl::InvalidArgumentError("the supervisor names no ports");
  for (size_t i = 0; i < message.ports.size(); ++i) {
    uint32_t port = 0;
    if (!absl::SimpleAtoi(words[i], &port) || port > 65535) {
      return absl::InvalidArgumentError("the supervisor names an invalid port");
    }
    message.ports[i] = static_cast<uint16_t>(port);
  }
  ASSIGN_OR_RETURN(message.config, server::ReadServerConfig(parts.second));
  return message;
}

void NotifySupervisor(const std::string& config) { PrintJsonLine({{"event", "configuration"}, {kConfig, config}}); }

}  // namespace tessera::client
