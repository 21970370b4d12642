#include "server/listeners/server_edges.h"

#include <algorithm>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/fields/enum_names.h"
#include "base/macros/status_macros.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"
#include "server/api/foreign_client.h"
#include "server/api/server_info.h"
#include "server/calls/call_log.h"
#include "server/calls/call_metrics.h"
#include "server/calls/process_metrics.h"
#include "server/config/web_url.h"
#include "server/grpc/grpc_server.h"
#include "server/http/admin_handler.h"
#include "server/http/api_handler.h"
#include "server/http/http_server.h"
#include "server/listeners/configured_rules.h"
#include "server/listeners/connection_metrics.h"
#include "server/listeners/descriptor_shares.h"
#include "server/listeners/refusal_log.h"
#include "server/trace/call_spans.h"

namespace tessera::server {
namespace {

HostRules HostRulesOf(const ServerConfig& config, const ListenConfig& listener) {
  HostRules rules = {.hosts = config.hosts, .origins = config.origins};
  // Pages that are served under the server's public name when a proxy ends TLS.
  if (const std::optional<WebUrl> url = ParseWebUrl(config.public_url)) rules.origins.push_back(url->origin);
  // On loopback, which pages in the users' browsers can reach, the check of names protects a server without keys; other
  // addresses do not need it.
  if (rules.hosts.empty() && !IsLoopbackAddress(listener.address)) rules.hosts = {"*"};
  return rules;
}

RequestLimits RequestLimitsOf(const ServerConfig& config) {
  return {.max_images = config.limits.images_per_request,
          .max_pixels = config.limits.pixels_per_image,
          .max_steps = config.limits.steps_per_image};
}

HttpServerOptions HttpOptionsOf(const ServerConfig& config, const ListenConfig& listener) {
  HttpServerOptions options;
  options.address = listener.address;
  options.port = listener.port;
  options.limits.connections = static_cast<size_t>(config.limits.connections);
  options.limits.header_bytes = static_cast<size_t>(config.limits.header_bytes);
  options.limits.body_bytes = static_cast<size_t>(config.limits.body_bytes);
  options.limits.receiving_bytes = static_cast<size_t>(config.limits.receiving_bytes);
  options.limits.body_rate = static_cast<size_t>(config.limits.body_rate);
  options.limits.sending_bytes = static_cast<size_t>(config.limits.sending_bytes);
  options.limits.header_time = config.limits.header_time;
  options.limits.body_time = config.limits.body_time;
  options.limits.idle_time = config.limits.idle_time;
  options.limits.write_time = config.limits.write_time;
  return options;
}

// Returns a function that logs the result of a reload.
std::function<void(const absl::Status&)> Reporting(const EdgeReports& reports, const std::string& what) {
  return [log = reports.log, what](const absl::Status& status) {
    if (!log) return;
    if (status.ok()) return log(absl::StrCat(what, " were reloaded"));
    log({base::LogLevel::kError, absl::StrCat(what, " were not reloaded: ", std::string(status.message()))});
  };
}

// Returns null if there is no file.
absl::StatusOr<std::unique_ptr<ApiKeys>> LoadKeys(const std::string& file, const EdgeReports& reports) {
  if (file.empty()) return nullptr;
  return ApiKeys::Load(file, Reporting(reports, "the API keys"), reports.shares);
}

absl::StatusOr<std::unique_ptr<ApiKeys>> LoadAdminKeys(const std::string& file, const EdgeReports& reports) {
  if (file.empty()) return nullptr;
  return ApiKeys::Load(file, Reporting(reports, "the admin keys"));
}

struct EdgeKeys {
  std::unique_ptr<ApiKeys> api, admin;  // null: no keys are required
};

class Edges final : public ServerEdges {
 public:
  Edges(const ServerConfig& config, ImageService& service, EdgeKeys keys, RequestRules rules, EdgeReports reports)
      : config_(config),
        service_(service),
        reports_(std::move(reports)),
        gate_(std::move(keys.api)),
        admin_gate_(std::move(keys.admin)),
        api_(service, gate_, ApiOptionsOf(config)),
        admin_handler_(service, AdminOptionsOf(config)) {
    gate_.SetLimits(RequestLimitsOf(config_));
    gate_.SetRules(std::move(rules));
  }

  absl::Status Listen(std::shared_ptr<TlsCertificates> tls) {
    if (config_.listen.http.enabled) {
      HttpServerOptions options = HttpOptionsOf(config_, config_.listen.http);
      options.limits.highest_descriptor = [] { return SharesOf(MostDescriptors()).http; };
      options.no_descriptor = ReportingTo(http_refusals_);
      options.tls = std::move(tls);
      auto server = HttpServer::Start(options, api_);
      if (!server.ok()) return server.status();
      const std::lock_guard lock(listeners_mutex_);
      http_ = *std::move(server);
    }
    if (config_.listen.admin.enabled) {
      HttpServerOptions options = HttpOptionsOf(config_, config_.listen.admin);
      const auto most = static_cast<size_t>(SharesOf(MostDescriptors()).admin_connections);
      options.limits.connections = std::min(options.limits.connections, most);
      options.limits.highest_descriptor = [] { return SharesOf(MostDescriptors()).admin; };
      options.no_descriptor = ReportingTo(admin_refusals_);
      auto server = HttpServer::Start(options, admin_handler_);
      if (!server.ok()) return server.status();
      const std::lock_guard lock(listeners_mutex_);
      admin_ = *std::move(server);
    }
    if (config_.listen.grpc.enabled) {
      auto server = GrpcServer::Start({.address = config_.listen.grpc.address,
                                       .port = config_.listen.grpc.port,
                                       .behind_proxy = config_.behind_proxy,
                                       .begin = Beginner(),
                                       .record = [this](const CallRecord& record) { Record(record); },
                                       .highest_descriptor = [] { return SharesOf(MostDescriptors()).grpc; },
                                       .no_descriptor = ReportingTo(grpc_refusals_),
                                       .make_room = [this] { return http_ != nullptr && http_->MakeRoom(); },
                                       .idle_time = config_.limits.idle_time,
                                       .handshake_time = config_.limits.header_time},
                                      service_, gate_);
      if (!server.ok()) return server.status();
      grpc_ = *std::move(server);
    }
    return absl::OkStatus();
  }

  uint16_t http_port() const override { return http_ == nullptr ? 0 : http_->port(); }
  uint16_t grpc_port() const override { return grpc_ == nullptr ? 0 : grpc_->port(); }
  uint16_t admin_port() const override { return admin_ == nullptr ? 0 : admin_->port(); }

  absl::Status Reload(const ServerConfig& config) override {
    ASSIGN_OR_RETURN(RequestRules rules, RequestRulesOf(config, reports_.log));
    ASSIGN_OR_RETURN(std::unique_ptr<ApiKeys> keys, LoadKeys(config.keys_file, reports_));
    if (keys == nullptr && reports_.shares) reports_.shares({});
    gate_.SetKeys(std::move(keys));
    gate_.SetLimits(RequestLimitsOf(config));
    gate_.SetRules(std::move(rules));
    return absl::OkStatus();
  }

  void Drain(absl::Duration timeout) override {
    std::thread grpc = base::StartThread([this, timeout] {
      if (grpc_ != nullptr) grpc_->Drain(timeout);
    });
    if (http_ != nullptr) http_->Drain(timeout);
    grpc.join();
  }

 private:
  static std::function<void()> ReportingTo(RefusalLog& log) {
    return [&log] { log.Refused(base::SteadyNow(), MostDescriptors()); };
  }

  CallBeginner Beginner() const {
    if (reports_.spans == nullptr) return nullptr;
    return [spans = reports_.spans](CallRecord& record) { spans->Begin(record); };
  }

  ApiOptions ApiOptionsOf(const ServerConfig& config) {
    ApiOptions options;
    options.hosts = HostRulesOf(config, config.listen.http);
    options.public_url = config.public_url;
    options.web_page = config.web_page;
    options.health = config.api_health;
    options.picture_body_bytes = static_cast<size_t>(config.limits.picture_body_bytes);
    if (config.api_metrics) options.metrics = [this] { return MetricsText(); };
    for (const std::string& name : config.clients) {
      if (const auto client = base::EnumOf<ForeignClient>(name)) options.clients.push_back(*client);
    }
    options.heartbeat = config.heartbeat;
    options.begin = Beginner();
    options.record = [this](const CallRecord& record) { Record(record); };
    return options;
  }

  AdminHandler::Options AdminOptionsOf(const ServerConfig& config) {
    const AdminAccess without_keys =
        IsLoopbackAddress(config.listen.admin.address) ? AdminAccess::kEveryone : AdminAccess::kNone;
    return {.hosts = HostRulesOf(config, config.listen.admin),
            .metrics = [this] { return MetricsText(); },
            .record = [this](const CallRecord& record) { Record(record); },
            .access = config.admin_keys_file.empty() ? without_keys : AdminAccess::kKeys,
            .gate = &admin_gate_};
  }

  std::string MetricsText() const {
    std::vector<std::pair<std::string, HttpConnectionCounts>> listeners;
    {
      const std::lock_guard lock(listeners_mutex_);
      if (http_ != nullptr) listeners.emplace_back("http", http_->counts());
      if (admin_ != nullptr) listeners.emplace_back("admin", admin_->counts());
    }
    return absl::StrCat(service_.MetricsText(), metrics_.Text(), ConnectionMetricsText(listeners), ProcessMetricsText(),
                        reports_.dropped_log_lines ? DroppedLogLinesText(reports_.dropped_log_lines()) : "",
                        reports_.more_metrics ? reports_.more_metrics() : "", BuildInfoText(service_.Info().version));
  }

  void Record(const CallRecord& record) {
    metrics_.Record(record);
    if (reports_.spans != nullptr) reports_.spans->End(record);
    if (reports_.call) reports_.call(call_log_.LineOf(record));
  }

  const ServerConfig config_;
  ImageService& service_;
  const EdgeReports reports_;
  CallMetrics metrics_;
  CallLog call_log_;
  RefusalLog http_refusals_{"http", reports_.log}, grpc_refusals_{"grpc", reports_.log},
      admin_refusals_{"admin", reports_.log};
  CallGate gate_;
  CallGate admin_gate_;
  ApiHandler api_;
  AdminHandler admin_handler_;
  mutable std::mutex listeners_mutex_;  // a scrape may come while the listeners start
  std::unique_ptr<HttpServer> http_;
  std::unique_ptr<HttpServer> admin_;
  std::unique_ptr<GrpcServer> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ServerEdges>> ServerEdges::Start(const ServerConfig& config, ImageService& service,
                                                                EdgeReports reports) {
  EdgeKeys keys;
  ASSIGN_OR_RETURN(keys.api, LoadKeys(config.keys_file, reports));
  ASSIGN_OR_RETURN(keys.admin, LoadAdminKeys(config.admin_keys_file, reports));
  std::shared_ptr<TlsCertificates> tls;
  if (!config.tls.certificate_chain.empty()) {
    auto loaded = TlsCertificates::Load(
        {.certificate_chain = config.tls.certificate_chain, .private_key = config.tls.private_key},
        Reporting(reports, "the TLS certificates"));
    if (!loaded.ok()) return loaded.status();
    tls = *std::move(loaded);
  }
  ASSIGN_OR_RETURN(RequestRules rules, RequestRulesOf(config, reports.log));
  auto edges = std::make_unique<Edges>(config, service, std::move(keys), std::move(rules), std::move(reports));
  RETURN_IF_ERROR(edges->Listen(std::move(tls)));
  return edges;
}

}  // namespace tessera::server
