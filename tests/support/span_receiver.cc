#include "tests/support/span_receiver.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

constexpr char kAccepted[] = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}";
constexpr int kPollMilliseconds = 20;  // how soon the end of the receiver is noticed

size_t LengthOf(const std::string& head) {
  for (const absl::string_view line : absl::StrSplit(head, "\r\n")) {
    constexpr absl::string_view kName = "content-length:";
    size_t length = 0;
    if (absl::StartsWithIgnoreCase(line, kName) && absl::SimpleAtoi(line.substr(kName.size()), &length)) return length;
  }
  return 0;
}

}  // namespace

SpanReceiver::SpanReceiver() {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  listen(listener_, 8);
  socklen_t size = sizeof(address);
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Run(); });
}

SpanReceiver::~SpanReceiver() {
  stopping_ = true;
  thread_.join();
  close(listener_);
}

void SpanReceiver::Answer(std::vector<std::string> answers) {
  const std::lock_guard lock(mutex_);
  answers_.assign(answers.begin(), answers.end());
}

std::vector<SpanReceiver::Request> SpanReceiver::Requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

size_t SpanReceiver::RequestCount() const {
  const std::lock_guard lock(mutex_);
  return requests_.size();
}

std::vector<boost::json::object> SpanReceiver::Spans() const {
  const std::lock_guard lock(mutex_);
  return spans_;
}

void SpanReceiver::Run() {
  while (!stopping_) {
    pollfd waiting = {.fd = listener_, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPollMilliseconds) <= 0) continue;
    const int connection = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    Serve(connection);
    close(connection);
  }
}

void SpanReceiver::Serve(int connection) {
  std::string input;
  bool is_silent = false;
  while (!stopping_) {
    pollfd waiting = {.fd = connection, .events = POLLIN, .revents = 0};
    if (poll(&waiting, 1, kPollMilliseconds) <= 0) continue;
    char buffer[16384];
    const ssize_t read = recv(connection, buffer, sizeof(buffer), 0);
    if (read <= 0) return;
    input.append(buffer, static_cast<size_t>(read));
    const size_t end = input.find("\r\n\r\n");
    if (is_silent || end == std::string::npos || input.size() < end + 4 + LengthOf(input.substr(0, end))) continue;
    Request request = {.head = input.substr(0, end), .body = input.substr(end + 4)};
    input.clear();
    const std::lock_guard lock(mutex_);
    std::string answer = kAccepted;
    const bool is_scripted = !answers_.empty();
    if (is_scripted) {
      answer = std::move(answers_.front());
      answers_.pop_front();
    }
    if (absl::StartsWith(answer, "HTTP/1.1 200")) {
      const boost::json::value message = boost::json::parse(request.body);
      for (const boost::json::value& span :
           message.at("resourceSpans").at(0).at("scopeSpans").at(0).at("spans").as_array()) {
        spans_.push_back(span.as_object());
      }
    }
    requests_.push_back(std::move(request));
    is_silent = answer.empty();
    send(connection, answer.data(), answer.size(), MSG_NOSIGNAL);
    if (is_scripted && !is_silent) return;
  }
}

}  // namespace tessera
