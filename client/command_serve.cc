#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/command.h"
#include "client/command_line.h"
#include "client/json_line.h"
#include "client/model_location.h"
#include "client/option_text.h"
#include "client/reporter.h"
#include "server/config/server_config.h"
#include "server/edge/server_edges.h"
#include "server/generation_request.h"
#include "server/service/fake_image_service.h"
#include "server/serving/durable_image_service.h"

namespace tessera {
namespace {

// For answers on their way when no job runs any more; whoever waits for a queued job would wait in vain.
constexpr absl::Duration kAnswerPatience = absl::Seconds(5);

struct ServeOptions {
  std::string config;
  std::string model_folders;
  std::string fake_step;
  bool print_config = false;
  bool fake_workers = false;
};

// One line of JSON on standard error, whoever writes it.
void Log(const std::string& text) {
  const boost::json::object line = {{"time", absl::FormatTime(absl::RFC3339_full, absl::Now(), absl::UTCTimeZone())},
                                    {"event", "log"},
                                    {"text", JsonText(text)}};
  const std::string bytes = boost::json::serialize(line) + "\n";
  std::fwrite(bytes.data(), 1, bytes.size(), stderr);
}

absl::StatusOr<ServedGroupOptions> GroupOf(const GroupConfig& config, const std::string& model_folders) {
  const absl::StatusOr<std::string> folder = FindModel(config.model, model_folders);
  if (!folder.ok()) return folder.status();
  ServedGroupOptions group = {.name = config.name.empty() ? ModelName(*folder) : config.name,
                              .aliases = config.aliases,
                              .layout = {.layout = config.layout},
                              .count = config.count};
  for (const std::string& device : config.devices) {
    const std::string dtype = !config.dtype.empty() ? config.dtype : absl::StartsWith(device, "cuda") ? "bf16" : "fp32";
    const absl::StatusOr<LoadParameters> load = Validate(PlacementRequest{.dtype = dtype,
                                                                          .device = device,
                                                                          .threads = config.threads,
                                                                          .text_encoders = config.text_encoders,
                                                                          .autoencoder = config.autoencoder,
                                                                          .stream_blocks = config.stream_blocks},
                                                         *folder);
    if (!load.ok()) return load.status();
    group.load = *load;
  }
  group.load.device = absl::StrJoin(config.devices, ",");
  if (config.layout == "auto" || config.devices.size() > 1) {
    group.layout.ranks = static_cast<int>(std::min<size_t>(config.devices.size(), kMaxRanks + 1));
  }
  if (absl::StatusOr<std::optional<Layout>> layout = ReadLayout(group.layout); !layout.ok()) return layout.status();
  return group;
}

class Serve {
 public:
  Serve(const ServeOptions& options, Interrupts& interrupts)
      : options_(options), interrupts_(interrupts), reporter_(MakeReporter({.quiet = true})) {}

  ExitCode Run() {
    ServerConfig config;
    if (!options_.config.empty()) {
      absl::StatusOr<ServerConfig> loaded = LoadServerConfig(options_.config);
      if (!loaded.ok()) return Fail(Stage::kOptions, loaded.status());
      config = *std::move(loaded);
    } else {
      config.groups = {GroupConfig{}};  // the embedded model
    }
    if (options_.print_config) {
      std::fputs(ServerConfigText(config).c_str(), stdout);
      return ExitCode::kOk;
    }
    if (options_.fake_workers) return ServeFakes(config);

    const absl::StatusOr<CertifyPolicy> certify = ParseCertifyPolicy(config.certify);
    if (!certify.ok()) return Fail(Stage::kOptions, certify.status());
    DurableServiceOptions service_options = {.data_folder = config.data_folder,
                                             .certify = *certify,
                                             .ready_when_durable = config.ready_when == "durable",
                                             .retention = config.retention,
                                             .max_queued_jobs = config.limits.queued_jobs,
                                             .log = Log};
    for (const GroupConfig& group : config.groups) {
      absl::StatusOr<ServedGroupOptions> served = GroupOf(group, options_.model_folders);
      if (!served.ok()) return Fail(Stage::kOptions, served.status());
      service_options.groups.push_back(*std::move(served));
    }
    absl::StatusOr<std::unique_ptr<DurableImageService>> service = DurableImageService::Start(service_options);
    if (!service.ok()) return Fail(Stage::kModel, service.status());
    return ServeUntilInterrupted(
        config, **service, [&] { (*service)->Drain(config.drain_time); }, std::min(config.drain_time, kAnswerPatience));
  }

 private:
  ExitCode Fail(Stage stage, const absl::Status& status) const {
    return ReportError(*reporter_, interrupts_, stage, status);
  }

  ExitCode ServeFakes(const ServerConfig& config) {
    FakeServiceOptions fake = {.step_time = absl::Milliseconds(100)};
    if (!options_.fake_step.empty()) {
      const absl::StatusOr<double> seconds = ParseNumber("fake step", options_.fake_step);
      if (!seconds.ok()) return Fail(Stage::kOptions, seconds.status());
      fake.step_time = absl::Seconds(*seconds);
    }
    FakeImageService service(fake);
    return ServeUntilInterrupted(
        config, service, [] {}, config.drain_time);
  }

  // `drain` ends the jobs; then `answers` is how long callers may take for what is left to tell them.
  ExitCode ServeUntilInterrupted(const ServerConfig& config, ImageService& service, const std::function<void()>& drain,
                                 absl::Duration answers) {
    absl::StatusOr<std::unique_ptr<ServerEdges>> edges = ServerEdges::Start(
        config, service,
        {.call = [](const std::string& line) { std::fputs((line + "\n").c_str(), stderr); }, .reloaded = Log});
    if (!edges.ok()) return Fail(Stage::kOptions, edges.status());
    PrintJsonLine({{"event", "listening"},
                   {"http", (*edges)->http_port()},
                   {"grpc", (*edges)->grpc_port()},
                   {"admin", (*edges)->admin_port()}});
    std::promise<void> interrupted;
    {
      const Interrupts::Reaction reaction(interrupts_, [&] { interrupted.set_value(); });
      interrupted.get_future().wait();
    }
    Log("draining: no more jobs are accepted");
    drain();
    (*edges)->Drain(answers);
    Log("ended");
    return ExitCode::kOk;
  }

  const ServeOptions& options_;
  Interrupts& interrupts_;
  const std::unique_ptr<Reporter> reporter_;
};

}  // namespace

CommandRun AddServe(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  AddText(app, {"-c,--config", "Configuration, see docs/serve.md (default: the embedded model on loopback)", "FILE"},
          options->config);
  AddText(app, {"--models-dir", "Further folders with models, separated by colons", "FOLDERS"}, options->model_folders);
  AddFlag(app, "--print-config", "Print the whole configuration with its defaults, and end", options->print_config);
  AddFlag(app, "--fake-workers", "Pictures of nothing, for those who write clients: no model is loaded",
          options->fake_workers);
  AddText(app, {"--fake-step", "Seconds of a step of the fake workers (default: 0.1)", "SECONDS"}, options->fake_step);
  SetFooter(app,
            "\nThe first SIGTERM or Ctrl-C stops accepting jobs, lets those that run end, and gives the others back to "
            "the queue; the second ends at once. Nothing accepted is lost either way.");
  return [options](Interrupts& interrupts) { return Serve(*options, interrupts).Run(); };
}

}  // namespace tessera
