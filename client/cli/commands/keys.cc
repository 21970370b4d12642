#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/output/json_line.h"
#include "client/cli/output/reporter.h"
#include "server/calls/api_keys.h"

namespace tessera::client {
namespace {

struct KeysOptions {
  std::string name;
  std::optional<std::string> requests_per_minute, queued_jobs, queued_device_seconds, share;
  bool json = false;
};

absl::StatusOr<server::NewKey> KeyOf(const KeysOptions& options) {
  server::ApiKey key;
  for (const auto& [name, typed] :
       {std::pair("requests_per_minute", options.requests_per_minute), std::pair("queued_jobs", options.queued_jobs),
        std::pair("queued_device_seconds", options.queued_device_seconds), std::pair("share", options.share)}) {
    if (!typed.has_value()) continue;
    RETURN_IF_ERROR(server::ReadKeyTerm(absl::StrCat(name, "=", *typed), key));
  }
  return server::NewApiKey(options.name, key.limits, key.share);
}

ExitCode MakeKey(const KeysOptions& options, Interrupts& interrupts) {
  const absl::StatusOr<server::NewKey> key = KeyOf(options);
  if (!key.ok()) return Finish(MakeReporter({.json = options.json}), interrupts, key.status());
  if (options.json) {
    PrintJsonLine({{"event", "key"}, {"name", options.name}, {"secret", key->secret}, {"line", key->line}});
  } else {
    std::printf(
        "The secret, for the caller; it is not stored and is shown only now:\n  %s\n"
        "The line for the server's keys_file:\n  %s\n",
        key->secret.c_str(), key->line.c_str());
  }
  return ExitCode::kOk;
}

}  // namespace

CommandRun AddKeys(CLI::App& app) {
  auto options = std::make_shared<KeysOptions>();
  AddText(app,
          {.names = "name",
           .help = "Name of the key's owner: 1 to 64 of A-Z a-z 0-9 . _ -",
           .type = "NAME",
           .required = true},
          options->name);
  BeginGroup(app, "Limits");
  AddText(app, {"--requests-per-minute", "Submissions in a minute, at most (default: no limit)", "N"},
          options->requests_per_minute);
  AddText(app, {"--queued-jobs", "Jobs accepted and not yet ended, at most (default: no limit)", "N"},
          options->queued_jobs);
  AddText(app, {"--queued-device-seconds", "Their predicted time on a device, at most (default: no limit)", "SECONDS"},
          options->queued_device_seconds);
  AddText(app, {"--share", "Share of the work while several keys have jobs, relative to 1 (default: 1)", "NUMBER"},
          options->share);
  BeginGroup(app, "Output");
  AddFlag(app, "--json", "One JSON object", options->json);
  return [options](Interrupts& interrupts) { return MakeKey(*options, interrupts); };
}

}  // namespace tessera::client
