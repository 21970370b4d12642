#include <unistd.h>

#include <climits>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/files/standard_streams.h"
#include "base/json/plain_json.h"
#include "base/log/log_line.h"
#include "base/log/log_writer.h"
#include "base/macros/status_macros.h"
#include "base/threads/task_limits.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/option_text.h"
#include "client/cli/output/reporter.h"
#include "client/cli/planning/host_calibration.h"
#include "client/cli/serve/process_limits.h"
#include "control/host/device.h"
#include "server/api/generation_request.h"
#include "server/nodes/node_agent.h"

namespace tessera::client {
namespace {

constexpr int kMostPlaces = 64;  // on one CPU
constexpr double kLongestTimeout = 86400;

struct NodeOptions {
  std::string join, tls_folder, token_file, name, devices = "cpu:1", join_timeout;
};

// Time to write the last lines of the log; a stalled reader loses them.
constexpr absl::Duration kLogTimeout = absl::Seconds(1);

// Parses devices: "cpu:2,cuda:0" is two places on the CPU and a GPU.
absl::StatusOr<std::vector<std::string>> ReadDevices(const std::string& text) {
  std::vector<std::string> devices;
  for (absl::string_view name : absl::StrSplit(text, ',')) {
    int places = 0;
    if (name == "cpu") name = "cpu:1";
    if (!control::IsNodeDevice(name)) {
      return server::FieldError("devices", absl::StrCat(" names ", server::QuotedValue(name),
                                                        "; valid values are cpu:N for N places on the CPU, and cuda:N "
                                                        "for a GPU, with commas between them, the nearest is cpu:1"));
    }
    if (!absl::ConsumePrefix(&name, "cpu:")) {
      devices.emplace_back(name);
      continue;
    }
    if (!absl::SimpleAtoi(name, &places) || places < 1 || places > kMostPlaces) {
      return server::FieldError(
          "devices", absl::StrCat(" asks for ", name, " places on the CPU; valid values are 1 to ", kMostPlaces));
    }
    for (int place = 0; place < places; ++place) devices.push_back(absl::StrCat("cpu:", place));
  }
  return devices;
}

absl::StatusOr<std::string> NameOfNode(const std::string& given) {
  std::string name = given;
  if (name.empty()) {
    char host[HOST_NAME_MAX + 1] = "";
    gethostname(host, sizeof(host) - 1);
    name = absl::AsciiStrToLower(host);
  }
  if (control::IsNodeName(name)) return name;
  return server::FieldError("name",
                            absl::StrCat(" is ", server::QuotedValue(name),
                                         "; valid values are 1 to 63 of a-z 0-9 . - that begin with a letter or "
                                         "digit, such as node-a"));
}

absl::Status RunNode(const NodeOptions& options, Interrupts& interrupts, base::EventLog log) {
  server::NodeAgentOptions agent_options = {.controller = options.join,
                                            .files = server::NodeFilesIn(options.tls_folder, options.token_file),
                                            .log = std::move(log)};
  ASSIGN_OR_RETURN(agent_options.name, NameOfNode(options.name));
  ASSIGN_OR_RETURN(agent_options.devices, ReadDevices(options.devices));
  const std::string cache = CacheFolder();
  if (!cache.empty()) agent_options.content_folder = absl::StrCat(cache, "/node-", agent_options.name);
  if (!options.join_timeout.empty()) {
    ASSIGN_OR_RETURN(const double seconds, ParseNumber("join timeout", options.join_timeout));
    if (!(seconds > 0 && seconds <= kLongestTimeout)) {
      return server::FieldError(
          "join timeout",
          absl::StrCat(" is ", options.join_timeout, "; valid values are above 0 to ", kLongestTimeout, " seconds"));
    }
    agent_options.join_timeout = absl::Seconds(seconds);
  }
  RETURN_IF_ERROR(PrepareProcessLimits(NeedsOfNode(std::ssize(agent_options.devices)), base::ReadTaskLimits()));
  RETURN_IF_ERROR(server::CheckNodeFiles(agent_options.files));
  ASSIGN_OR_RETURN(agent_options.version, server::VersionOfWorker());
  agent_options.joined = [name = agent_options.name] {
    base::Announce(base::PlainJson({{"event", "joined"}, {"node", name}}));
  };
  server::NodeAgent agent(agent_options);
  const Interrupts::Reaction reaction(interrupts, [&agent] { agent.Stop(); });
  return agent.Run();
}

}  // namespace

CommandRun AddNode(CLI::App& app) {
  auto options = std::make_shared<NodeOptions>();
  BeginGroup(app, "Server to join");
  AddText(
      app,
      {.names = "--join", .help = "Address of the server's listener for nodes", .type = "HOST:PORT", .required = true},
      options->join);
  AddText(app,
          {.names = "--tls-dir",
           .help = "Folder of tls.crt, tls.key and ca.crt, read again for every connection",
           .type = "FOLDER",
           .required = true},
          options->tls_folder);
  AddText(app,
          {.names = "--token-file",
           .help = "File with the token that the server has, too",
           .type = "FILE",
           .required = true},
          options->token_file);
  AddText(
      app,
      {"--join-timeout", "Seconds to wait for the server when joining for the first time (default: 300)", "SECONDS"},
      options->join_timeout);
  BeginGroup(app, "Devices to lend");
  AddText(app, {"--devices", "cpu:N for N ranks on the CPU, cuda:N for a GPU (default: cpu:1)", "LIST"},
          options->devices);
  AddText(app, {"--name", "Name of the node in groups, as in node-a/cuda:0 (default: the host's name)", "NAME"},
          options->name);
  SetFooter(
      app,
      "\nJoins again whenever the connection ends. SIGTERM or Ctrl-C ends the node with its ranks: the server makes "
      "their jobs elsewhere, or once a node of that name is back.");
  return [options](Interrupts& interrupts) {
    const auto writer = std::make_shared<base::LogWriter>(base::LogWriterOptions());
    const std::unique_ptr<Reporter> reporter =
        MakeReporter({.quiet = true, .errors = [writer](std::string text) { writer->WriteText(std::move(text)); }});
    const absl::Status status = RunNode(*options, interrupts, base::LogTo(writer, base::LogLevel::kDebug));
    const ExitCode code = Finish(reporter, interrupts, status.ok() ? absl::StatusOr<ExitCode>(ExitCode::kOk) : status);
    writer->Flush(kLogTimeout);
    return code;
  };
}

}  // namespace tessera::client
