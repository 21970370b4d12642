#include "client/cli/remote/remote_server.h"

#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <boost/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/utf8.h"
#include "client/cli/file_bytes.h"
#include "client/cli/remote/server_url.h"
#include "server/api/generation_request.h"

namespace tessera {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using TlsStream = asio::ssl::stream<beast::tcp_stream>;
using Parser = http::response_parser<http::string_body>;

constexpr uint64_t kMaxAnswerBytes = 256 << 20;
constexpr size_t kMaxShownBytes = 2000;
constexpr size_t kMaxKeyBytes = 4096;

absl::StatusCode CodeOf(int status) {
  switch (status) {
    case 401:
      return absl::StatusCode::kUnauthenticated;
    case 403:
      return absl::StatusCode::kPermissionDenied;
    case 404:
      return absl::StatusCode::kNotFound;
    case 408:
    case 429:
    case 502:
    case 503:
    case 504:
      return absl::StatusCode::kUnavailable;
    default:
      return status >= 400 && status < 500 ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kInternal;
  }
}

absl::Status ErrorOf(const http::response<http::string_body>& answer) {
  const int status = answer.result_int();
  std::string message;
  error_code failed;
  const boost::json::value body = boost::json::parse(answer.body(), failed);
  if (const boost::json::object* whole = failed ? nullptr : body.if_object()) {
    const boost::json::value* error = whole->if_contains("error");
    const boost::json::object* fields = error == nullptr ? nullptr : error->if_object();
    const boost::json::value* text = fields == nullptr ? nullptr : fields->if_contains("message");
    if (text != nullptr && text->is_string()) message = std::string(text->get_string().c_str());
  }
  message = message.empty() ? absl::StrCat("the server answered with status ", status)
                            : absl::StrCat("the server says: ", PrintableText(message));
  if (const auto wait = answer.find(http::field::retry_after); wait != answer.end()) {
    absl::StrAppend(&message, "; it may in ", PrintableText(std::string(wait->value())), " s");
  }
  return absl::Status(CodeOf(status), message);
}

absl::StatusOr<std::string> ReadKey(const std::string& path) {
  if (path.empty()) return "";
  absl::StatusOr<std::string> bytes = ReadFileBytes(path);
  if (!bytes.ok()) return absl::InvalidArgumentError(std::string(bytes.status().message()));
  const std::string key(absl::StripAsciiWhitespace(*bytes));
  if (key.empty() || key.size() > kMaxKeyBytes || !std::all_of(key.begin(), key.end(), absl::ascii_isgraph)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the file ", QuotedValue(path), " holds no API key; legal is the secret alone, in one line"));
  }
  return key;
}

class HttpRemoteServer final : public RemoteServer {
 public:
  HttpRemoteServer(ServerUrl url, std::string key, absl::Duration patience)
      : url_(std::move(url)),
        key_(std::move(key)),
        patience_(absl::ToChronoNanoseconds(patience)),
        tls_(asio::ssl::context::tls_client),
        resolver_(io_),
        timer_(io_) {}

  absl::Status Trust(const std::string& ca_file) {
    error_code error;
    SSL_CTX_set_min_proto_version(tls_.native_handle(), TLS1_2_VERSION);
    tls_.set_verify_mode(asio::ssl::verify_peer, error);
    if (ca_file.empty()) {
      tls_.set_default_verify_paths(error);
    } else {
      tls_.load_verify_file(ca_file, error);
    }
    if (!error) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat("the certificate authorities ", QuotedValue(ca_file),
                                                   " cannot be read; legal is a PEM file: ", error.message()));
  }

  absl::StatusOr<std::string> Call(const std::string& method, const std::string& target) override {
    return AnswerTo({.method = method, .target = target});
  }

  absl::StatusOr<std::string> Submit(const std::string& target, const std::string& body,
                                     const std::string& idempotency_key) override {
    bool may_have_arrived = false;
    for (int lost = 1;; ++lost) {
      absl::StatusOr<std::string> answer =
          AnswerTo({.method = "POST", .target = target, .body = body, .idempotency_key = idempotency_key});
      may_have_arrived = may_have_arrived || lost_;
      if (!lost_ && !(may_have_arrived && answer.status().code() == absl::StatusCode::kUnavailable)) return answer;
      if (lost > kMostReconnections) return answer;
      if (absl::Status paused = Pause(kReconnectPause); !paused.ok()) return paused;
    }
  }

  absl::Status Follow(const std::string& target, absl::FunctionRef<bool(const ServerEvent&)> take) override {
    Parser parser;
    parser.body_limit(boost::none);
    return Exchange({.method = "GET", .target = target}, parser, take);
  }

  absl::Status Pause(absl::Duration time) override {
    timer_.expires_after(absl::ToChronoNanoseconds(time));
    const error_code error = Await([&](auto done) { timer_.async_wait(std::move(done)); });
    return error ? Lost(error) : absl::OkStatus();
  }

  void Interrupt() override {
    asio::post(io_, [this] {
      interrupted_ = true;
      resolver_.cancel();
      timer_.cancel();
      if (active_ != nullptr) active_->cancel();
    });
  }

  bool SendsKeyInClear() const override { return !key_.empty() && !url_.tls && !url_.IsLoopback(); }

 private:
  struct Request {
    std::string method;
    std::string target;
    std::string body;             // empty: none
    std::string idempotency_key;  // empty: none
  };
  using Take = std::optional<absl::FunctionRef<bool(const ServerEvent&)>>;

  // Runs one asynchronous operation to its end. An interruption is handled in between, on this thread.
  template <typename Start>
  error_code Await(const Start& start) {
    std::optional<error_code> ended;
    io_.restart();
    io_.poll();
    if (interrupted_) return asio::error::operation_aborted;
    start([&ended](error_code error, auto&&...) { ended = error; });
    io_.restart();
    while (!ended.has_value()) io_.run_one();
    return *ended;
  }

  absl::Status Lost(const error_code& error) const {
    if (interrupted_) return absl::CancelledError("interrupted");
    const std::string what = error == beast::error::timeout ? "nothing came from it in time" : error.message();
    return absl::UnavailableError(absl::StrCat("the server ", url_.authority, " cannot be reached: ", what));
  }

  absl::StatusOr<std::string> AnswerTo(const Request& request) {
    Parser parser;
    parser.body_limit(kMaxAnswerBytes);
    absl::Status status = Exchange(request, parser, std::nullopt);
    if (!status.ok()) return status;
    const int code = parser.get().result_int();
    // What a proxy says whose server has gone.
    lost_ = code == 502 || code == 504;
    if (code >= 300) return ErrorOf(parser.get());
    return std::move(parser.get().body());
  }

  absl::Status Exchange(const Request& request, Parser& parser, Take take) {
    lost_ = false;
    tcp::resolver::results_type addresses;
    error_code error = Await([&](auto done) {
      resolver_.async_resolve(url_.host, url_.port,
                              [&addresses, done](error_code failed, tcp::resolver::results_type found) mutable {
                                addresses = std::move(found);
                                done(failed);
                              });
    });
    if (error) return Lost(error);
    TlsStream stream(io_, tls_);
    beast::tcp_stream& socket = stream.next_layer();
    active_ = &socket;
    absl::Status status = Connect(stream, addresses);
    if (status.ok()) {
      status = url_.tls ? Talk(stream, socket, request, parser, take) : Talk(socket, socket, request, parser, take);
      lost_ = status.code() == absl::StatusCode::kUnavailable;
    }
    active_ = nullptr;
    return status;
  }

  absl::Status Connect(TlsStream& stream, const tcp::resolver::results_type& addresses) {
    beast::tcp_stream& socket = stream.next_layer();
    socket.expires_after(patience_);
    error_code error = Await([&](auto done) { socket.async_connect(addresses, std::move(done)); });
    if (error) return Lost(error);
    if (!url_.tls) return absl::OkStatus();
    stream.set_verify_callback(asio::ssl::host_name_verification(url_.host), error);
    if (error) return Lost(error);
    SSL_set_tlsext_host_name(stream.native_handle(), url_.host.c_str());
    error = Await([&](auto done) { stream.async_handshake(asio::ssl::stream_base::client, std::move(done)); });
    const int64_t verified = SSL_get_verify_result(stream.native_handle());
    if (error && !interrupted_ && verified != X509_V_OK) {
      return absl::UnavailableError(absl::StrCat(
          "the server ", url_.authority, " does not prove who it is: ", X509_verify_cert_error_string(verified)));
    }
    return error ? Lost(error) : absl::OkStatus();
  }

  // `take`: the answer is a stream of events unless it is an error.
  template <typename Stream>
  absl::Status Talk(Stream& stream, beast::tcp_stream& socket, const Request& asked, Parser& parser, Take take) {
    http::request<http::string_body> request;
    request.method_string(asked.method);
    request.target(asked.target);
    request.version(11);
    request.set(http::field::host, url_.authority);
    request.set(http::field::user_agent, "tessera");
    request.set(http::field::connection, "close");
    if (!key_.empty()) request.set(http::field::authorization, absl::StrCat("Bearer ", key_));
    if (!asked.idempotency_key.empty()) request.set("Idempotency-Key", asked.idempotency_key);
    if (!asked.body.empty()) request.set(http::field::content_type, "application/json");
    request.body() = asked.body;
    request.prepare_payload();

    socket.expires_after(patience_);
    error_code error = Await([&](auto done) { http::async_write(stream, request, std::move(done)); });
    if (error) return Lost(error);
    beast::flat_buffer buffer;
    error = Await([&](auto done) { http::async_read_header(stream, buffer, parser, std::move(done)); });
    if (error) return Lost(error);
    EventStream events;
    const bool follows = take.has_value() && parser.get().result_int() == 200;
    if (take.has_value() && !follows) parser.body_limit(kMaxAnswerBytes);
    while (!parser.is_done()) {
      socket.expires_after(patience_);
      error = Await([&](auto done) { http::async_read_some(stream, buffer, parser, std::move(done)); });
      if (error == http::error::body_limit) return absl::ResourceExhaustedError("the server's answer has no end");
      if (error) return Lost(error);
      if (!follows) continue;
      std::vector<ServerEvent> ready;
      absl::Status status = events.Take(parser.get().body(), ready);
      if (!status.ok()) return status;
      parser.get().body().clear();
      for (const ServerEvent& event : ready) {
        if (!(*take)(event)) return absl::OkStatus();
      }
    }
    if (!take.has_value()) return absl::OkStatus();
    return follows ? absl::UnavailableError("the server ended the stream of events") : ErrorOf(parser.get());
  }

  const ServerUrl url_;
  const std::string key_;
  const std::chrono::nanoseconds patience_;
  asio::io_context io_;
  asio::ssl::context tls_;
  tcp::resolver resolver_;
  asio::steady_timer timer_;
  beast::tcp_stream* active_ = nullptr;
  bool interrupted_ = false;
  bool lost_ = false;  // the last request went out, and its answer did not come
};

}  // namespace

std::string PrintableText(const std::string& text) {
  std::string safe = ReplaceInvalidUtf8(text.substr(0, kMaxShownBytes));
  for (char& c : safe) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return safe;
}

absl::Status CheckJobId(const std::string& id) {
  const bool legal = !id.empty() && id.size() <= 200 && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-';
  });
  if (legal) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the id ", QuotedValue(id), " is not one of a server"));
}

absl::StatusOr<std::unique_ptr<RemoteServer>> RemoteServer::Create(const RemoteServerOptions& options) {
  absl::StatusOr<ServerUrl> url = ParseServerUrl(options.url);
  if (!url.ok()) return url.status();
  absl::StatusOr<std::string> key = ReadKey(options.api_key_file);
  if (!key.ok()) return key.status();
  auto server = std::make_unique<HttpRemoteServer>(*std::move(url), *std::move(key), options.patience);
  if (absl::Status status = server->Trust(options.ca_file); !status.ok()) return status;
  return server;
}

}  // namespace tessera
