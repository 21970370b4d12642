#include "server/grpc/grpc_server.h"

#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/grpc/image_service_calls.h"
#include "server/grpc/listener_check.h"
#include "server/grpc/reflection_calls.h"
#include "server/service/task_pool.h"

namespace tessera {
namespace {

constexpr int kMaxMessageBytes = 1 << 20;
constexpr int kMaxMetadataBytes = 16 << 10;
constexpr auto kHealthPeriod = std::chrono::milliseconds(250);
// Of the listener: how often it is asked, how long an answer may take, and how many in a row may be missing.
constexpr auto kWatchPeriod = std::chrono::seconds(2);
constexpr absl::Duration kAnswerPatience = absl::Seconds(5);
constexpr int kSilences = 2;
constexpr absl::Duration kRetirePatience = absl::Seconds(5);
constexpr char kServiceName[] = "tessera.v1.ImageService";

bool IsLoopback(const std::string& address) {
  return address == "localhost" || address == "::1" || absl::StartsWith(address, "127.");
}

// From one listening to the end of the last call that came by it.
class Server final {
 public:
  Server(const GrpcServerOptions& options, ImageService& service, CallGate& gate)
      : service_(service),
        pool_(std::make_unique<TaskPool>(options.task_threads)),
        calls_(MakeImageServiceCalls(service, gate, *pool_, options.limits, options.record)) {}

  ~Server() {
    Drain(absl::ZeroDuration());
    pool_.reset();
  }

  absl::Status Listen(const GrpcServerOptions& options, uint16_t wanted_port) {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::ServerBuilder builder;
    const bool is_ipv6 = absl::StrContains(options.address, ':');
    int port = 0;
    builder.AddListeningPort(absl::StrCat(is_ipv6 ? "[" : "", options.address, is_ipv6 ? "]" : "", ":", wanted_port),
                             grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(calls_.get());
    if (IsLoopback(options.address)) builder.RegisterService(reflection_.get());
    builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxMetadataBytes);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, 1000);
    // Two servers on one port would take calls from each other.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // A client may ask this often whether the connection lives, and is asked in turn.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 10000);
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      return absl::UnavailableError(absl::StrCat("cannot listen for gRPC on ", options.address, ":", wanted_port));
    }
    port_ = static_cast<uint16_t>(port);
    health_ = std::thread([this] { TellHealth(); });
    return absl::OkStatus();
  }

  uint16_t port() const { return port_; }

  void Drain(absl::Duration patience) {
    if (server_ == nullptr) return;
    {
      const std::lock_guard lock(mutex_);
      draining_ = true;
    }
    changed_.notify_all();
    if (health_.joinable()) health_.join();
    server_->GetHealthCheckService()->Shutdown();
    server_->Shutdown(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(patience));
    server_->Wait();
  }

 private:
  // gRPC's health service keeps a status, and sends it to all who watch whenever it is told.
  void TellHealth() {
    grpc::HealthCheckServiceInterface& health = *server_->GetHealthCheckService();
    std::optional<bool> told;
    std::unique_lock lock(mutex_);
    while (!draining_) {
      lock.unlock();
      const bool ready = service_.Ready().ok();
      if (ready != told) {
        health.SetServingStatus("", ready);
        health.SetServingStatus(kServiceName, ready);
        told = ready;
      }
      lock.lock();
      changed_.wait_for(lock, kHealthPeriod, [this] { return draining_; });
    }
  }

  ImageService& service_;
  std::unique_ptr<TaskPool> pool_;
  const std::unique_ptr<grpc::Service> calls_;
  const std::unique_ptr<grpc::Service> reflection_ = MakeReflectionCalls();
  std::unique_ptr<grpc::Server> server_;
  uint16_t port_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool draining_ = false;
  std::thread health_;
};

// Listens again when the listener has fallen silent.
class WatchedServer final : public GrpcServer {
 public:
  WatchedServer(const GrpcServerOptions& options, ImageService& service, CallGate& gate)
      : options_(options), service_(service), gate_(gate) {}
  ~WatchedServer() override { Drain(absl::ZeroDuration()); }

  absl::Status Listen() {
    if (absl::Status listening = ListenOn(options_.port); !listening.ok()) return listening;
    port_ = server_->port();
    watch_ = std::thread([this] { Watch(); });
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }

  void Drain(absl::Duration patience) override {
    {
      const std::lock_guard lock(mutex_);
      draining_ = true;
    }
    changed_.notify_all();
    if (watch_.joinable()) watch_.join();
    if (server_ != nullptr) server_->Drain(patience);
  }

 private:
  absl::Status ListenOn(uint16_t port) {
    auto server = std::make_unique<Server>(options_, service_, gate_);
    if (absl::Status listening = server->Listen(options_, port); !listening.ok()) return listening;
    server_ = std::move(server);
    return absl::OkStatus();
  }

  bool Draining() {
    const std::lock_guard lock(mutex_);
    return draining_;
  }

  void Watch() {
    int silent = 0;
    while (true) {
      {
        std::unique_lock lock(mutex_);
        if (changed_.wait_for(lock, kWatchPeriod, [this] { return draining_; })) return;
      }
      if (server_ != nullptr) {
        const ListenerState state =
            AskListener(options_.address, port_, kAnswerPatience, [this] { return Draining(); });
        if (state == ListenerState::kAccepts) silent = 0;
        if (state != ListenerState::kSilent || ++silent < kSilences) continue;
        // It listens no more from here on; the calls that came by it have a while.
        server_->Drain(kRetirePatience);
        server_.reset();
      }
      if (!ListenOn(port_).ok()) continue;
      silent = 0;
      if (options_.log) options_.log("the gRPC listener accepted no more connections: it listens again");
    }
  }

  const GrpcServerOptions options_;
  ImageService& service_;
  CallGate& gate_;
  uint16_t port_ = 0;
  std::unique_ptr<Server> server_;  // of the watch while that runs; none while the port cannot be had

  std::mutex mutex_;
  std::condition_variable changed_;
  bool draining_ = false;  // guarded by mutex_
  std::thread watch_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<GrpcServer>> GrpcServer::Start(const GrpcServerOptions& options, ImageService& service,
                                                              CallGate& gate) {
  if (!IsLoopback(options.address) && !options.behind_proxy) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the gRPC address is ", options.address,
        "; beyond loopback legal is only behind a proxy that ends HTTP/2 (behind_proxy: true), the nearest "
        "is 127.0.0.1"));
  }
  auto server = std::make_unique<WatchedServer>(options, service, gate);
  absl::Status status = server->Listen();
  if (!status.ok()) return status;
  return server;
}

}  // namespace tessera
