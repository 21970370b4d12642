// SpanReceiver is a receiver of the OpenTelemetry protocol over HTTP that answers as a test says.
#pragma once

#include <atomic>
#include <boost/json.hpp>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace tessera {

class SpanReceiver {
 public:
  struct Request {
    std::string head;  // request line and header lines
    std::string body;
  };

  // Listens on a free port of this machine. Connections are served one at a time.
  SpanReceiver();
  ~SpanReceiver();

  SpanReceiver(const SpanReceiver&) = delete;
  SpanReceiver& operator=(const SpanReceiver&) = delete;

  uint16_t port() const { return port_; }

  // The next requests get these bytes, in this order, and the connection is closed after each; those after them get
  // 200. kNoAnswer: the connection stays open without an answer.
  static constexpr char kNoAnswer[] = "";
  void Answer(std::vector<std::string> answers);

  std::vector<Request> Requests() const;
  size_t RequestCount() const;
  // Returns all spans of the messages that got 200.
  std::vector<boost::json::object> Spans() const;

 private:
  void Run();
  void Serve(int connection);

  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stopping_ = false;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::deque<std::string> answers_;
  std::vector<Request> requests_;
  std::vector<boost::json::object> spans_;
  std::thread thread_;
};

}  // namespace tessera
