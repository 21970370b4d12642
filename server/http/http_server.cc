#include "server/http/http_server.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <optional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/machine/machine_processors.h"
#include "base/macros/status_macros.h"
#include "base/threads/start_thread.h"
#include "server/http/http_connection.h"

namespace tessera::server {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// Pause after running out of descriptors, unless a connection ends first.
constexpr auto kAcceptRetry = std::chrono::milliseconds(100);

// Unsent bytes that the kernel buffers per answer. Without a bound, each slow client would occupy megabytes.
constexpr int kUnsentBytes = 128 << 10;

class Listener final : public HttpServer {
 public:
  Listener(const HttpServerOptions& options, HttpHandler& handler)
      : options_(options),
        host_(std::make_shared<HttpConnectionHost>(options.limits, handler, options.handler_threads)),
        strand_(asio::make_strand(host_->context)),
        acceptor_(strand_),
        retry_(strand_),
        work_(asio::make_work_guard(host_->context)) {}

  ~Listener() override {
    asio::post(strand_, [this] { StopAccepting(); });
    CloseAll();
    // After this, the handlers get no more requests; those still running write to closed replies.
    WaitForConnections(absl::InfiniteDuration());
    host_->handlers.join();
    host_->Stop();
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
  }

  absl::Status Listen() {
    error_code error;
    const std::string address = options_.address == "localhost" ? "127.0.0.1" : options_.address;
    const asio::ip::address parsed = asio::ip::make_address(address, error);
    if (error) {
      return absl::InvalidArgumentError(
          absl::StrCat("address '", options_.address, "' is not an IP address, such as 127.0.0.1 or ::1"));
    }
    const tcp::endpoint endpoint(parsed, options_.port);
    const auto try_to = [&](auto step) {
      if (!error) step();
    };
    try_to([&] { acceptor_.open(endpoint.protocol(), error); });
    try_to([&] { acceptor_.set_option(tcp::acceptor::reuse_address(true), error); });
    try_to([&] { acceptor_.bind(endpoint, error); });
    try_to([&] { acceptor_.listen(asio::socket_base::max_listen_connections, error); });
    try_to([&] { port_ = acceptor_.local_endpoint(error).port(); });
    if (error) {
      return absl::UnavailableError(
          absl::StrCat("cannot listen on ", options_.address, ":", options_.port, ": ", error.message()));
    }
    asio::post(strand_, [this] { Accept(); });
    int threads = options_.connection_threads;
    if (threads == 0) threads = base::ReadMachineProcessors().available() > 2 ? 2 : 1;
    for (int i = 0; i < threads; ++i) {
      threads_.push_back(base::StartThread([this] { host_->context.run(); }));
    }
    return absl::OkStatus();
  }

  uint16_t port() const override { return port_; }

  size_t connections() const override {
    const std::lock_guard lock(mutex_);
    return connections_.size();
  }

  HttpConnectionCounts counts() const override {
    const std::lock_guard lock(mutex_);
    HttpConnectionCounts counts = counts_;
    counts.open = connections_.size();
    counts.bodies = host_->body_budget->use();
    return counts;
  }

  bool MakeRoom() override {
    const std::lock_guard lock(mutex_);
    return CloseLongestIdle() ||
           std::ranges::any_of(connections_, [](const auto& connection) { return connection->gives_way(); });
  }

  void Drain(absl::Duration timeout) override {
    host_->Drain();
    asio::post(strand_, [this] { StopAccepting(); });
    for (const auto& connection : Connections()) connection->Drain();
    if (!WaitForConnections(timeout)) CloseAll();
  }

 private:
  void StopAccepting() {
    stopped_ = true;
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    waiting_.reset();
  }

  void Accept() {
    if (stopped_) return;
    acceptor_.async_accept(asio::make_strand(host_->context), [this](error_code error, tcp::socket socket) {
      if (stopped_) return;
      if (!error) return Take(std::move(socket));
      if (error == asio::error::no_descriptors) {
        ReportNoDescriptor();
        (void)MakeRoom();
      }
      AcceptLater();
    });
  }

  // A connection with a descriptor beyond the bound waits until another is closed, and takes its number.
  void Take(tcp::socket socket) {
    if (!IsBeyond(socket)) {
      Admit(std::move(socket));
      return Accept();
    }
    ReportNoDescriptor();
    if (!MakeRoom()) {
      CountRefused();
      return Accept();
    }
    waiting_ = std::move(socket);
    AcceptLater();
  }

  bool IsBeyond(tcp::socket& socket) const {
    const auto& highest = options_.limits.highest_descriptor;
    return highest && socket.native_handle() > highest();
  }

  // Accepts again when a connection has ended, or after a pause.
  void AcceptLater() {
    waits_for_room_ = true;
    retry_.expires_after(kAcceptRetry);
    retry_.async_wait([this](error_code cancelled) {
      if (!cancelled) AcceptAgain();
    });
  }
  void AcceptAgain() {
    if (!std::exchange(waits_for_room_, false) || stopped_) return;
    retry_.cancel();
    if (!waiting_.has_value()) return Accept();
    tcp::socket socket = *std::exchange(waiting_, std::nullopt);
    TakeLowestDescriptor(socket);
    Take(std::move(socket));
  }

  void TakeLowestDescriptor(tcp::socket& socket) const {
    const int lowest = fcntl(socket.native_handle(), F_DUPFD_CLOEXEC, 0);
    if (lowest < 0) return;
    error_code error;
    const tcp protocol = acceptor_.local_endpoint(error).protocol();
    close(socket.release(error));
    socket.assign(protocol, lowest, error);
    if (error) close(lowest);
  }

  void Admit(tcp::socket socket) {
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kUnsentBytes, sizeof(kUnsentBytes));
    std::shared_ptr<asio::ssl::context> tls;
    if (options_.tls != nullptr) tls = options_.tls->Current();
    std::shared_ptr<HttpConnection> connection;
    {
      const std::lock_guard lock(mutex_);
      if (closing_ || host_->draining()) return;
      // Closing at once is the only answer that costs nothing; it also makes a load balancer use another server.
      if (connections_.size() >= options_.limits.connections && !CloseLongestIdle()) {
        ++counts_.refused;
        return;
      }
      connection = HttpConnection::Create(host_, std::move(socket), std::move(tls),
                                          [this](HttpConnection* ended) { Forget(ended); });
      connections_.insert(connection);
      ++counts_.accepted;
    }
    connection->Start();
  }

  void ReportNoDescriptor() const {
    if (options_.no_descriptor) options_.no_descriptor();
  }

  void CountRefused() {
    const std::lock_guard lock(mutex_);
    ++counts_.refused;
  }

  // Requires mutex_. Returns false if all connections that stay have running requests.
  bool CloseLongestIdle() {
    std::shared_ptr<HttpConnection> longest;
    std::optional<std::chrono::steady_clock::time_point> since;
    for (const auto& connection : connections_) {
      const auto idle = connection->idle_since();
      if (!idle.has_value() || (since.has_value() && *idle >= *since)) continue;
      longest = connection;
      since = idle;
    }
    if (longest == nullptr) return false;
    ++counts_.closed_idle;
    longest->CloseIfIdle();
    return true;
  }

  void Forget(HttpConnection* ended) {
    asio::post(strand_, [this] { AcceptAgain(); });
    const std::lock_guard lock(mutex_);
    std::erase_if(connections_, [&](const auto& connection) { return connection.get() == ended; });
    ended_.notify_all();
  }

  std::vector<std::shared_ptr<HttpConnection>> Connections() const {
    const std::lock_guard lock(mutex_);
    return {connections_.begin(), connections_.end()};
  }

  void CloseAll() {
    {
      const std::lock_guard lock(mutex_);
      closing_ = true;
    }
    for (const auto& connection : Connections()) connection->Close();
  }

  bool WaitForConnections(absl::Duration timeout) {
    std::unique_lock lock(mutex_);
    const auto none = [this] { return connections_.empty(); };
    if (timeout != absl::InfiniteDuration()) {
      return ended_.wait_for(lock, absl::ToChronoNanoseconds(timeout), none);
    }
    ended_.wait(lock, none);
    return true;
  }

  const HttpServerOptions options_;
  const std::shared_ptr<HttpConnectionHost> host_;
  asio::strand<asio::io_context::executor_type> strand_;
  tcp::acceptor acceptor_;
  asio::steady_timer retry_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  uint16_t port_ = 0;
  bool stopped_ = false;  // used on the strand
  // Used on the strand.
  bool waits_for_room_ = false;
  std::optional<tcp::socket> waiting_;  // waits for a descriptor

  mutable std::mutex mutex_;
  std::condition_variable ended_;
  std::set<std::shared_ptr<HttpConnection>> connections_;
  bool closing_ = false;
  HttpConnectionCounts counts_;  // without the number of open ones

  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, HttpHandler& handler) {
  auto listener = std::make_unique<Listener>(options, handler);
  RETURN_IF_ERROR(listener->Listen());
  return listener;
}

}  // namespace tessera::server
