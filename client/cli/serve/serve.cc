#include <malloc.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/files/standard_streams.h"
#include "base/json/plain_json.h"
#include "base/log/log_line.h"
#include "base/log/log_writer.h"
#include "base/macros/status_macros.h"
#include "base/text/random_bytes.h"
#include "client/cli/command.h"
#include "client/cli/command_line.h"
#include "client/cli/models/model_location.h"
#include "client/cli/option_text.h"
#include "client/cli/output/reporter.h"
#include "client/cli/serve/process_limits.h"
#include "client/cli/serve/served_group.h"
#include "client/cli/serve/server_signals.h"
#include "client/cli/serve/supervised_server.h"
#include "client/cli/session/model_options.h"
#include "control/fakes/fake_script.h"
#include "control/parameters/component_files.h"
#include "server/api/generation_request.h"
#include "server/calls/process_metrics.h"
#include "server/config/config_change.h"
#include "server/config/server_config.h"
#include "server/listeners/descriptor_shares.h"
#include "server/listeners/server_edges.h"
#include "server/nodes/node_agent.h"
#include "server/nodes/node_listener.h"
#include "server/nodes/node_registry.h"
#include "server/otlp/http_span_transport.h"
#include "server/otlp/otlp_exporter.h"
#include "server/otlp/otlp_settings.h"
#include "server/serving/durable_image_service.h"
#include "server/trace/call_spans.h"
#include "server/trace/image_spans.h"
#include "server/trace/trace_file.h"
#include "server/workers/worker_process.h"

namespace tessera::client {
namespace {

// Time for responses in transit once no job is running; a client waiting for a queued job would wait in vain.
constexpr absl::Duration kAnswerTimeout = absl::Seconds(5);
// Time to write the last lines of the log; a stalled reader loses them.
constexpr absl::Duration kLogTimeout = absl::Seconds(1);
// Time to send the last spans.
constexpr absl::Duration kSpansTimeout = absl::Seconds(3);

struct ServeOptions {
  std::string config;
  std::string model, adapter_folder, host, port, keys_file, log_level;  // override the configuration
  bool allow_anonymous = false;
  std::string model_folders;
  control::ComponentFiles files;
  std::string fake_script;
  std::string trace;
  std::string die_at;
  bool print_config = false;
  bool no_supervisor = false;
  bool fake_workers = false;
};

// The default behavior of the fake workers.
constexpr char kFakeScript[] = "any-model step-time=100 start-of-[warn]=warn step2-of-[fail]=error step2-of-[die]=die";

// Selects the fake workers through the environment variables that users set. Call it before any worker is started.
absl::Status UseFakeWorkers(const std::string& script) {
  const char* inherited = std::getenv("TESSERA_FAKE_WORKER");
  const std::string all = absl::StrCat(script, " ", inherited == nullptr ? "" : inherited, " ", kFakeScript);
  RETURN_IF_ERROR(control::FakeScript::Read(all, /*rank=*/0).status());
  setenv("TESSERA_WORKER", server::FakeWorkerExecutable().c_str(), /*overwrite=*/1);
  setenv("TESSERA_FAKE_WORKER", all.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

// Keeps the images of fake workers out of the data folder of real ones.
std::string FakeDataFolder(absl::string_view data_folder) {
  while (data_folder.size() > 1 && absl::ConsumeSuffix(&data_folder, "/")) {
  }
  return absl::StrCat(data_folder, "-fake");
}

server::ServiceLimits ServiceLimitsOf(const server::LimitsConfig& limits) {
  return {.max_queued_jobs = limits.queued_jobs,
          .max_expected_wait = absl::Seconds(limits.queued_device_seconds),
          .max_job_time = absl::Seconds(limits.max_job_seconds)};
}

class Serve {
 public:
  Serve(const ServeOptions& options, Interrupts& interrupts)
      : options_(options),
        interrupts_(interrupts),
        reporter_(MakeReporter(
            {.quiet = true, .errors = [this](std::string text) { writer_->WriteText(std::move(text)); }})) {}

  ExitCode Run() {
    const ExitCode code = Finish(reporter_, interrupts_, Execute());
    writer_->Flush(kLogTimeout);
    return code;
  }

 private:
  absl::StatusOr<ExitCode> Execute() {
    IgnoreOtherSignals();
    std::optional<SupervisorMessage> message;
    if (!options_.no_supervisor) {
      ASSIGN_OR_RETURN(message, At(Stage::kJob, ReadSupervisorMessage()));
    }
    ASSIGN_OR_RETURN(server::ServerConfig config, message.has_value() ? message->config : ReadConfig());
    config_ = config;
    log_ = base::LogTo(writer_, config.log_level);
    if (options_.fake_workers) {
      if (server::IsDefaultGroup(config.groups))
        config.groups = {server::GroupConfig{.model = "fake", .aliases = {"gpt-image-1", "dall-e-3"}}};
      RETURN_IF_ERROR(UseFakeWorkers(options_.fake_script));
      config.data_folder = FakeDataFolder(config.data_folder);
    } else if (!options_.fake_script.empty()) {
      return absl::InvalidArgumentError("--fake-script needs --fake-workers");
    }
    if (options_.print_config) {
      std::fputs(server::ServerConfigText(config).c_str(), stdout);
      return ExitCode::kOk;
    }
    if (!options_.no_supervisor && !message.has_value()) return Supervise();
    supervised_ = message.has_value();
    if (supervised_) message->TakePorts(config);
    ServerSignals signals(interrupts_);
    RETURN_IF_ERROR(At(Stage::kJob, PrepareProcessLimits(NeedsOf(config), base::ReadTaskLimits())));
    // Each malloc arena retains its peak, and no thread here allocates enough to need a separate one.
    mallopt(M_ARENA_MAX, 2);

    server::DurableServiceOptions service_options = {
        .data_folder = config.data_folder,
        .adapter_folder = config.adapter_folder,
        .certify = config.certify,
        .may_start_without_models = supervised_ && message->IsAfterAnother(),
        .ready_when_durable = config.ready_when == server::ReadyWhen::kDurable,
        .retention = config.retention,
        .committed_image_bytes = config.committed_image_bytes,
        .picture_storage_bytes = static_cast<uint64_t>(config.limits.picture_storage_bytes),
        .picture_storage_bytes_per_key = static_cast<uint64_t>(config.limits.picture_storage_bytes_per_key),
        .uploaded_file_time = config.limits.uploaded_file_time,
        .retention_bytes = config.retention_bytes,
        .limits = ServiceLimitsOf(config.limits),
        .highest_result_descriptor = [] { return server::SharesOf(server::MostDescriptors()).results; },
        .host_memory = MemoryOfHost,
        .key_metrics = config.key_metrics,
        .openai_names = config.openai_names,
        .log = log_};
    if (!config.store.dsn.empty()) {
      service_options.shared_queue = {.address = {.dsn = config.store.dsn, .password_file = config.store.password_file},
                                      .lease = config.store.lease};
    }
    if (!options_.die_at.empty()) {
      ASSIGN_OR_RETURN(service_options.at_point, server::DieAt(options_.die_at));
    }
    std::unique_ptr<server::TraceFile> trace;
    if (!options_.trace.empty()) {
      ASSIGN_OR_RETURN(trace, server::TraceFile::Create(options_.trace, log_));
      service_options.trace = trace.get();
    }
    RETURN_IF_ERROR(ExportSpans(config.tracing));
    service_options.spans = image_spans_.get();
    RETURN_IF_ERROR(ListenForNodes(config));
    service_options.hosts = nodes_.get();
    ASSIGN_OR_RETURN(service_options.groups, GroupsOf(config, service_options.may_start_without_models));
    ASSIGN_OR_RETURN(std::unique_ptr<server::DurableImageService> service,
                     At(Stage::kModel, server::DurableImageService::Start(service_options)));
    UseForNodes(service.get());
    const absl::Cleanup unused = [this] { UseForNodes(nullptr); };
    return ServeUntilEnd(config, *service, signals);
  }

  absl::Status ExportSpans(const server::TracingConfig& tracing) {
    ASSIGN_OR_RETURN(const server::OtlpSettings settings,
                     server::OtlpSettingsOf(tracing, [](const std::string& name) -> std::optional<std::string> {
                       const char* value = std::getenv(name.c_str());
                       return value == nullptr ? std::nullopt : std::optional<std::string>(value);
                     }));
    if (settings.url.empty()) return absl::OkStatus();
    exporter_ = std::make_unique<server::OtlpExporter>(
        std::make_unique<server::HttpSpanTransport>(settings.url,
                                                    [settings] { return server::HeaderLinesOf(settings); }),
        server::OtlpExporterOptions{.resource = {.service_name = settings.service_name,
                                                 .service_version = TESSERA_VERSION,
                                                 .instance_id = base::RandomId("")},
                                    .queued_spans = static_cast<size_t>(tracing.queued_spans),
                                    .batch_spans = static_cast<size_t>(tracing.batch_spans),
                                    .interval = tracing.interval,
                                    .timeout = tracing.timeout,
                                    .log = log_});
    const server::SpanOptions options = {.sampling_ratio = tracing.sampling_ratio, .key_names = tracing.key_names};
    call_spans_ = std::make_unique<server::CallSpans>(*exporter_, options);
    image_spans_ = std::make_unique<server::ImageSpans>(*exporter_, options);
    return absl::OkStatus();
  }

  absl::Status ListenForNodes(const server::ServerConfig& config) {
    if (!config.nodes.enabled) return absl::OkStatus();
    ASSIGN_OR_RETURN(std::string version, server::VersionOfWorker());
    nodes_ = std::make_unique<server::NodeRegistry>(server::NodeRegistryOptions{.version = std::move(version),
                                                                                .join_wait = config.nodes.join_wait,
                                                                                .joined =
                                                                                    [this] {
                                                                                      const std::lock_guard lock(
                                                                                          service_mutex_);
                                                                                      if (service_ != nullptr)
                                                                                        service_->TryGroups();
                                                                                    },
                                                                                .log = log_});
    const server::NodeFiles files = {.certificate_chain = config.nodes.certificate_chain,
                                     .private_key = config.nodes.private_key,
                                     .authority = config.nodes.authority,
                                     .token = config.nodes.token_file};
    ASSIGN_OR_RETURN(node_listener_, server::NodeListener::Start({.address = config.nodes.listen.address,
                                                                  .port = config.nodes.listen.port,
                                                                  .files = files,
                                                                  .beat = config.nodes.beat,
                                                                  .lost_after = config.nodes.lost_after,
                                                                  .log = log_},
                                                                 *nodes_));
    return absl::OkStatus();
  }

  // Sets the service whose groups start immediately when a node joins; null: none.
  void UseForNodes(server::DurableImageService* service) {
    const std::lock_guard lock(service_mutex_);
    service_ = service;
    if (service == nullptr && nodes_ != nullptr) nodes_->Stop();
  }

  // Reads the file, or the defaults, and applies the command line's overrides.
  absl::StatusOr<server::ServerConfig> ReadConfig() const {
    absl::StatusOr<server::ServerConfig> config =
        options_.config.empty() ? server::ReadServerConfig("") : server::LoadServerConfig(options_.config);
    if (!config.ok()) return config;
    if (options_.model.empty() && !options_.files.empty()) {
      return absl::InvalidArgumentError(
          "--text-encoder, --vae, --tokenizer and --without-t5 are of the components of the model that --model names; "
          "a "
          "configuration has keys of its groups for them");
    }
    if (!options_.model.empty()) {
      config->groups = {server::GroupConfig{.model = options_.model, .files = options_.files}};
    }
    if (!options_.host.empty()) config->listen.http.address = options_.host;
    if (!options_.port.empty()) {
      ASSIGN_OR_RETURN(const int64_t port, ParseInteger("port", options_.port));
      if (port < 0 || port > 65535) {
        return server::FieldError("port", absl::StrCat(" is ", port, "; valid values are 0 to 65535"));
      }
      config->listen.http.port = static_cast<uint16_t>(port);
      if (port == 0 && options_.config.empty()) config->listen.grpc.port = config->listen.admin.port = 0;
    }
    config->listen.http.enabled = config->listen.http.enabled || !options_.host.empty() || !options_.port.empty();
    if (!options_.adapter_folder.empty()) config->adapter_folder = options_.adapter_folder;
    if (!options_.keys_file.empty()) config->keys_file = options_.keys_file;
    config->allow_anonymous = config->allow_anonymous || options_.allow_anonymous;
    if (!options_.log_level.empty()) {
      RETURN_IF_ERROR(server::CheckName("log level", options_.log_level, base::EnumNames<base::LogLevel>()));
      config->log_level = *base::EnumOf<base::LogLevel>(options_.log_level);
    }
    RETURN_IF_ERROR(server::CheckServerConfig(*config));
    return config;
  }

  // A missing model is retried later, unless all models are missing.
  absl::StatusOr<std::vector<server::ServedGroupOptions>> GroupsOf(const server::ServerConfig& config,
                                                                   bool may_all_miss) const {
    std::vector<server::ServedGroupOptions> groups;
    absl::Status missing;
    bool found = false;
    for (const server::GroupConfig& group : config.groups) {
      absl::StatusOr<server::ServedGroupOptions> served =
          ServedGroupOf(group, options_.model_folders, options_.fake_workers);
      found = found || served.ok();
      if (absl::IsNotFound(served.status())) {
        missing.Update(served.status());
        served = ServedGroupOf(group, options_.model_folders, /*any_model=*/true);
      }
      if (!served.ok()) return served.status();
      if (!options_.fake_workers) {
        served->find_model = [model = group.model, folders = options_.model_folders] {
          return FindModel(model, folders);
        };
      }
      groups.push_back(*std::move(served));
    }
    if (!found && !may_all_miss) return missing;
    RETURN_IF_ERROR(CheckNamesOf(groups));
    return groups;
  }

  absl::StatusOr<ExitCode> Supervise() {
    ASSIGN_OR_RETURN(const int code,
                     At(Stage::kJob, SuperviseServer(interrupts_, server::ServerConfigText(config_), log_)));
    return static_cast<ExitCode>(code);
  }

  // Checks whether this process's limits allow what a configuration needs in addition to the current one.
  absl::Status CheckGrowth(const server::ServerConfig& config) const {
    const ProcessNeeds now = NeedsOf(config_), then = NeedsOf(config);
    return PrepareProcessLimits({.files = then.files, .tasks = std::max<int64_t>(then.tasks - now.tasks, 0)},
                                base::ReadTaskLimits());
  }

  // Handles SIGHUP. After any error, the server continues unchanged.
  void Reload(server::DurableImageService& service, server::ServerEdges& edges) {
    const auto refuse = [&](const absl::Status& status) {
      log_({base::LogLevel::kError,
            absl::StrCat("SIGHUP: the configuration was not reloaded: ", std::string(status.message()))});
    };
    if (options_.config.empty()) {
      return log_({base::LogLevel::kWarning, "SIGHUP: there is no configuration file to reload"});
    }
    std::error_code error;
    if (std::filesystem::file_size(options_.config, error) == 0 && !error) {
      return refuse(absl::InvalidArgumentError("the file is empty; it may still be being written"));
    }
    const absl::StatusOr<server::ServerConfig> wanted = ReadConfig();
    if (!wanted.ok()) return refuse(wanted.status());
    const absl::StatusOr<server::ConfigChange> change = server::ChangeOf(config_, *wanted);
    if (!change.ok()) return refuse(change.status());
    const absl::StatusOr<std::vector<server::ServedGroupOptions>> groups =
        GroupsOf(change->config, /*may_all_miss=*/false);
    if (!groups.ok()) return refuse(groups.status());
    if (absl::Status grown = CheckGrowth(change->config); !grown.ok()) return refuse(grown);
    if (absl::Status loaded = edges.Reload(change->config); !loaded.ok()) return refuse(loaded);
    config_ = change->config;
    service.SetLimits(ServiceLimitsOf(config_.limits));
    service.SetGroups(*groups);
    if (supervised_) NotifySupervisor(server::ServerConfigText(config_));
    const std::string later = change->needs_restart.empty() ? ""
                                                            : absl::StrCat("; takes effect at the next start: ",
                                                                           absl::StrJoin(change->needs_restart, ", "));
    log_(absl::StrCat("SIGHUP: the configuration was reloaded: ",
                      change->changed.empty() ? "nothing has changed" : absl::StrJoin(change->changed, ", "),
                      config_.keys_file.empty() ? "" : "; the API keys were reloaded, too", later));
  }

  absl::StatusOr<ExitCode> ServeUntilEnd(const server::ServerConfig& config, server::DurableImageService& service,
                                         ServerSignals& signals) {
    absl::StatusOr<std::unique_ptr<server::ServerEdges>> edges = server::ServerEdges::Start(
        config, service,
        {.call = log_,
         .shares = [&service](const server::ApiKeys::Shares& shares) { service.SetShares(shares); },
         .log = log_,
         .dropped_log_lines = [writer = writer_] { return writer->dropped(); },
         .spans = call_spans_.get(),
         .more_metrics = [this] { return exporter_ == nullptr ? "" : exporter_->MetricsText(); }});
    if (!edges.ok()) return edges.status();
    boost::json::object ports = {{"event", "listening"},
                                 {"http", (*edges)->http_port()},
                                 {"grpc", (*edges)->grpc_port()},
                                 {"admin", (*edges)->admin_port()}};
    if (node_listener_ != nullptr) ports["nodes"] = node_listener_->port();
    base::Announce(base::PlainJson(ports));
    while (signals.Wait() == ServerSignals::Signal::kReload) Reload(service, **edges);
    log_("draining: no more jobs are accepted");
    service.Drain(config_.drain_time);
    (*edges)->Drain(std::min(config_.drain_time, kAnswerTimeout));
    if (exporter_ != nullptr) exporter_->Stop(kSpansTimeout);
    log_("ended");
    return ExitCode::kOk;
  }

  const ServeOptions& options_;
  Interrupts& interrupts_;
  const std::shared_ptr<base::LogWriter> writer_ = std::make_shared<base::LogWriter>(base::LogWriterOptions());
  const std::unique_ptr<Reporter> reporter_;
  base::EventLog log_ = base::LogTo(writer_, base::LogLevel::kInfo);
  server::ServerConfig config_;  // the configuration as written, as far as it is in effect
  bool supervised_ = false;
  std::mutex service_mutex_;
  server::DurableImageService* service_ = nullptr;  // guarded by service_mutex_
  // These outlive the service and the edges. Null: no spans are exported.
  std::unique_ptr<server::OtlpExporter> exporter_;
  std::unique_ptr<server::CallSpans> call_spans_;
  std::unique_ptr<server::ImageSpans> image_spans_;
  // These outlive the service, whose groups may have ranks on nodes. Null: no listener for nodes.
  std::unique_ptr<server::NodeRegistry> nodes_;
  std::unique_ptr<server::NodeListener> node_listener_;
};

}  // namespace

CommandRun AddServe(CLI::App& app) {
  auto options = std::make_shared<ServeOptions>();
  BeginGroup(app, "Models and callers");
  AddText(app, {"-c,--config", "Configuration, see docs/serve.md (default: the embedded model on loopback)", "FILE"},
          options->config);
  AddText(app,
          {"--model", "Serve this model on this machine's CPU, without a configuration", "FOLDER|FILE|NAME",
           /*required=*/false, /*may_be_empty=*/false, "--config"},
          options->model);
  AddComponentOptions(app, options->files);
  AddText(
      app,
      {"--adapter-folder",
       "Serve the low-rank adapters of this folder, see docs/adapters.md, in place of the configuration's", "FOLDER"},
      options->adapter_folder);
  AddText(app, {"--host", "Address of HTTP, in place of the configuration's (default: 127.0.0.1)", "ADDRESS"},
          options->host);
  AddText(app,
          {"--port",
           "Port of HTTP, in place of the configuration's; 0: any, without one of gRPC and admin too (default: 8080)",
           "PORT"},
          options->port);
  AddText(app, {"--keys-file", "API keys, see `tessera keys`, in place of the configuration's", "FILE"},
          options->keys_file);
  AddFlag(app, "--allow-anonymous", "Serve callers of other machines without keys, too", options->allow_anonymous);
  AddModelFoldersOption(app, options->model_folders);
  BeginGroup(app, "Operation");
  AddText(app, {"--log-level", "Lowest level of log lines (default: info)", "debug|info|warning|error"},
          options->log_level);
  AddFlag(app, "--print-config", "Print the whole configuration with its defaults, and exit", options->print_config);
  AddFlag(app, "--no-supervisor", "Serve in this process, without a supervisor that restarts it",
          options->no_supervisor);
  AddText(app, {"--trace", "Write a timeline of jobs and groups, see docs/serve.md", "FILE"}, options->trace);
  BeginGroup(app, "For tests");
  AddFlag(app, "--fake-workers", "Workers that need no model and generate placeholder pictures, for testing clients",
          options->fake_workers);
  AddText(app, {"--fake-script", "How long their work takes and which faults occur, see docs/serve.md", "SCRIPT"},
          options->fake_script);
  AddText(app,
          {"--die-at", "For fault tests: kill -9 of the process that serves, the Nth time it reaches a failpoint",
           "FAILPOINT[:N]"},
          options->die_at);
  SetFooter(app,
            "\nThe first SIGTERM or Ctrl-C stops accepting jobs, lets those that run end, and gives the others back to "
            "the queue; the second ends at once. Nothing accepted is lost either way. SIGHUP reads keys, groups and "
            "limits again.");
  return [options](Interrupts& interrupts) { return Serve(*options, interrupts).Run(); };
}

}  // namespace tessera::client
