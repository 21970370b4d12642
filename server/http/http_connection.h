// One client's connection: reads requests one after another, hands each to the handler, writes the reply. Everything
// of a connection happens on its strand; what is public may be called from any thread.
#pragma once

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <memory>
#include <mutex>

#include "server/http/http_server.h"

namespace tessera {

// What the connections of one server share. Outlives them; replies that are kept longer than the server find it
// stopped.
class HttpConnectionHost {
 public:
  HttpConnectionHost(const HttpLimits& limits, HttpHandler& handler, int handler_threads)
      : limits(limits), handler(handler), handlers(static_cast<size_t>(handler_threads)) {}

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

  const HttpLimits limits;
  HttpHandler& handler;
  boost::asio::io_context context;
  boost::asio::thread_pool handlers;

 private:
  std::mutex mutex_;
  bool stopped_ = false;
};

class HttpConnection {
 public:
  virtual ~HttpConnection() = default;
  virtual void Start() = 0;
  virtual void Drain() = 0;  // closes once no request is under way
  virtual void Close() = 0;  // at once

  // `socket` runs on a strand. `tls` is null for plain HTTP. `ended` is called once, on the strand.
  static std::shared_ptr<HttpConnection> Create(std::shared_ptr<HttpConnectionHost> host,
                                                boost::asio::ip::tcp::socket socket,
                                                std::shared_ptr<boost::asio::ssl::context> tls,
                                                std::function<void(HttpConnection*)> ended);
};

}  // namespace tessera
