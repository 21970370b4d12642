// HttpConnection is one client's connection: it reads requests one after another, passes each to the handler, and
// writes the reply. All its work runs on its strand; public methods may be called from any thread.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "server/http/http_server.h"
#include "server/http/piece_turns.h"

namespace tessera::server {

// Bytes read at a time from a body that is read while it is sent.
inline constexpr size_t kPieceBytes = 64 << 10;

// State shared by the connections of one server. It outlives them; a reply that is kept longer than the server finds it
// stopped.
class HttpConnectionHost {
 public:
  HttpConnectionHost(const HttpLimits& limits, HttpHandler& handler, int handler_threads)
      : limits(limits),
        handler(handler),
        body_budget(std::make_shared<BodyBudget>(limits.receiving_bytes)),
        piece_turns(std::make_shared<PieceTurns>(limits.sending_bytes / kPieceBytes)),
        handlers(static_cast<size_t>(handler_threads)) {}

  // Runs `task` on `executor` unless the server has stopped.
  template <typename Executor, typename Task>
  void Post(const Executor& executor, Task task) {
    const std::lock_guard lock(mutex_);
    if (!stopped_) boost::asio::post(executor, std::move(task));
  }
  void Stop() {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
  }

  // Disables keep-alive for all connections. It is set before the first connection drains, so that any answer written
  // after a peer could notice the drain says that its connection closes.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }

  const HttpLimits limits;
  HttpHandler& handler;
  const std::shared_ptr<BodyBudget> body_budget;
  const std::shared_ptr<PieceTurns> piece_turns;
  boost::asio::io_context context;
  boost::asio::thread_pool handlers;

 private:
  std::mutex mutex_;
  bool stopped_ = false;
  std::atomic<bool> draining_ = false;
};

class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void Start() = 0;
  virtual void Drain() = 0;  // requires a draining host: closes if no request is running, else after its answer
  virtual void Close() = 0;  // at once

  // Returns since when it has been waiting for a complete request, or for the client to close after the last answer;
  // nullopt while a request is running or the connection is closing to make room.
  virtual std::optional<std::chrono::steady_clock::time_point> idle_since() const = 0;
  virtual void CloseIfIdle() = 0;      // to make room for another connection
  virtual bool gives_way() const = 0;  // asked to close, and not closed yet

  // `socket` runs on a strand. `tls` is null for plain HTTP. `ended` is called once, on the strand.
  static std::shared_ptr<HttpConnection> Create(std::shared_ptr<HttpConnectionHost> host,
                                                boost::asio::ip::tcp::socket socket,
                                                std::shared_ptr<boost::asio::ssl::context> tls,
                                                std::function<void(HttpConnection*)> ended);
};

}  // namespace tessera::server
