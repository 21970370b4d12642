#include "server/grpc/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/threads/start_thread.h"
#include "base/threads/task_pool.h"
#include "server/grpc/connection_acceptor.h"
#include "server/grpc/grpc_log.h"
#include "server/grpc/image_service_calls.h"
#include "server/grpc/reflection_calls.h"

namespace tessera::server {
namespace {

constexpr int kMaxMessageBytes = 1 << 20;
constexpr int kTaskThreads = 4;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr auto kHealthPeriod = std::chrono::milliseconds(250);
constexpr char kServiceName[] = "tessera.v1.ImageService";

bool IsLoopback(const std::string& address) {
  return address == "localhost" || address == "::1" || absl::StartsWith(address, "127.");
}

class Server final : public GrpcServer {
 public:
  Server(const GrpcServerOptions& options, ImageService& service, CallGate& gate)
      : options_(options),
        service_(service),
        pool_(std::make_unique<base::TaskPool>(kTaskThreads)),
        calls_(MakeImageServiceCalls(service, gate, *pool_, options.begin, options.record)) {}

  ~Server() override {
    Drain(absl::ZeroDuration());
    pool_.reset();
  }

  absl::Status Listen() {
    absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> acceptor =
        ConnectionAcceptor::Listen({.address = options_.address,
                                    .port = options_.port,
                                    .highest_descriptor = options_.highest_descriptor,
                                    .no_descriptor = options_.no_descriptor,
                                    .make_room = options_.make_room});
    if (!acceptor.ok()) return acceptor.status();
    port_ = (*acceptor)->port();
    KeepGrpcQuiet();
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    connections_ = builder.experimental().AddExternalConnectionAcceptor(
        grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD, grpc::InsecureServerCredentials());
    builder.RegisterService(calls_.get());
    if (IsLoopback(options_.address)) {
      for (const auto& service : reflection_) builder.RegisterService(service.get());
    }
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1000);
    // A connection without a call, or without HTTP/2 at all, is closed to free its descriptor.
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, Milliseconds(options_.idle_time));
    builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, Milliseconds(options_.handshake_time));
    // Clients may send keepalive pings this often, and the server sends its own.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      return absl::UnavailableError(absl::StrCat("cannot serve gRPC on ", options_.address, ":", options_.port));
    }
    acceptor_ = *std::move(acceptor);
    acceptor_->Start([this](int descriptor) {
      grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
      connection.fd = descriptor;
      connections_->HandleNewConnection(&connection);
    });
    health_ = base::StartThread([this] { ReportHealth(); });
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }

  void Drain(absl::Duration timeout) override {
    if (server_ == nullptr) return;
    acceptor_.reset();
    {
      const std::lock_guard lock(mutex_);
      draining_ = true;
    }
    changed_.notify_all();
    if (health_.joinable()) health_.join();
    server_->GetHealthCheckService()->Shutdown();
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
    server_->Wait();
  }

 private:
  // gRPC's health service keeps a status and sends it to all watchers whenever it is set.
  void ReportHealth() {
    grpc::HealthCheckServiceInterface& health = *server_->GetHealthCheckService();
    std::optional<bool> reported;
    std::unique_lock lock(mutex_);
    while (!draining_) {
      lock.unlock();
      const bool ready = service_.Ready().ok();
      if (ready != reported) {
        health.SetServingStatus("", ready);
        health.SetServingStatus(kServiceName, ready);
        reported = ready;
      }
      lock.lock();
      changed_.wait_for(lock, kHealthPeriod, [this] { return draining_; });
    }
  }

  static int Milliseconds(absl::Duration time) {
    return static_cast<int>(std::clamp<int64_t>(absl::ToInt64Milliseconds(time), 1, INT_MAX));
  }

  const GrpcServerOptions options_;
  ImageService& service_;
  std::unique_ptr<base::TaskPool> pool_;
  const std::unique_ptr<grpc::Service> calls_;
  const std::vector<std::unique_ptr<grpc::Service>> reflection_ = MakeReflectionCalls();
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> connections_;
  std::unique_ptr<ConnectionAcceptor> acceptor_;  // null once the server drains
  uint16_t port_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool draining_ = false;
  std::thread health_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options, ImageService& service,
                                                              CallGate& gate) {
  if (!IsLoopback(options.address) && !options.behind_proxy) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the gRPC address is ", options.address,
        "; beyond loopback it is valid only behind a proxy that ends HTTP/2 (behind_proxy: true), the nearest "
        "is 127.0.0.1"));
  }
  auto server = std::make_unique<Server>(options, service, gate);
  RETURN_IF_ERROR(server->Listen());
  return server;
}

}  // namespace tessera::server
