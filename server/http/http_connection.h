// One client's connection: reads requests one after another, hands each to the handler, writes the reply. Everything
// of a connection happens on its strand; what is public may be called from any thread.
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

// Read at a time of a body that is read while it is sent.
inline constexpr size_t kPieceBytes = 64 << 10;

// What the connections of one server share. Outlives them; replies that are kept longer than the server find it
// stopped.
class HttpConnectionHost {
 public:
  HttpConnectionHost(const HttpLimits& limits, HttpHandler& handler, int handler_threads)
      : limits(limits),
        handler(handler),
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

  // No connection keeps alive from here on. Set once for all of them, before the first is told to drain: an answer that
  // is written after any peer saw the drain says that its connection closes.
  void Drain() { draining_ = true; }
  bool draining() const { return draining_; }

  const HttpLimits limits;
  HttpHandler& handler;
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
  virtual void Drain() = 0;  // of a host that drains: closes if no request is under way, else after its answer
  virtual void Close() = 0;  // at once

  // Since when it has waited for the whole of a request, or lingers after its last answer; nothing while a request is
  // under way or it is being closed to make room.
  virtual std::optional<std::chrono::steady_clock::time_point> idle_since() const = 0;
  virtual void CloseIfIdle() = 0;      // to make room for another
  virtual bool gives_way() const = 0;  // told to, and not closed yet

  // `socket` runs on a strand. `tls` is null for plain HTTP. `ended` is called once, on the strand.
  static std::shared_ptr<HttpConnection> Create(std::shared_ptr<HttpConnectionHost> host,
                                                boost::asio::ip::tcp::socket socket,
                                                std::shared_ptr<boost::asio::ssl::context> tls,
                                                std::function<void(HttpConnection*)> ended);
};

}  // namespace tessera::server
