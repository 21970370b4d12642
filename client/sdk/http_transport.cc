#include "client/sdk/http_transport.h"

#include <openssl/ssl.h>

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/ssl/host_name_verification.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/macros/status_macros.h"
#include "base/time/steady_time.h"
#include "client/sdk/json_messages.h"

namespace tessera::client {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using TlsStream = asio::ssl::stream<beast::tcp_stream>;
using Parser = http::response_parser<http::string_body>;
using Request = http::request<http::string_body>;
using Take = absl::FunctionRef<bool(const ServerEvent&)>;

constexpr uint64_t kMaxAnswerBytes = 256 << 20;
// A server that sends nothing for this long is considered lost. It sends a heartbeat on event streams every few
// seconds.
constexpr absl::Duration kLongestSilence = absl::Minutes(2);
constexpr char kLost[] = "tessera-lost";

absl::Status Lost(absl::Status status) {
  status.SetPayload(kLost, absl::Cord("1"));
  return status;
}

absl::Status ErrorOf(const http::response<http::string_body>& answer) {
  absl::Status status =
      ReadError(static_cast<int>(answer.result_int()), answer.body(), std::string(answer[http::field::retry_after]));
  // A proxy sends these if it cannot reach the server.
  const bool is_of_proxy = answer.result() == http::status::bad_gateway ||
                           (answer.result() == http::status::gateway_timeout && RefusalOf(status).code.empty());
  return is_of_proxy ? Lost(std::move(status)) : status;
}

Request RequestOf(const HttpCall& call, const ServerUrl& url, const std::string& api_key) {
  Request request;
  request.method_string(call.method);
  request.target(call.target);
  request.version(11);
  request.set(http::field::host, url.authority);
  request.set(http::field::user_agent, "tessera");
  request.set(http::field::connection, "close");
  if (!api_key.empty()) request.set(http::field::authorization, absl::StrCat("Bearer ", api_key));
  if (!call.idempotency_key.empty()) request.set("Idempotency-Key", call.idempotency_key);
  if (!call.body.empty()) request.set(http::field::content_type, call.media_type);
  request.body() = call.body;
  request.prepare_payload();
  return request;
}

// One request and its response, on the caller's thread. Cancellation and deadline are also handled on this thread,
// between operations.
class Exchange {
 public:
  Exchange(const ServerUrl& url, asio::ssl::context& tls, const HttpCall& call)
      : url_(url), call_(call), resolver_(io_), stream_(io_, tls), socket_(stream_.next_layer()) {}

  // `take` receives the events if the response is an event stream.
  absl::StatusOr<HttpAnswer> Run(Request request, std::optional<Take> take) {
    const std::stop_callback stop(call_.stop, [this] {
      asio::post(io_, [this] {
        resolver_.cancel();
        socket_.cancel();
      });
    });
    RETURN_IF_ERROR(Connect());
    absl::StatusOr<HttpAnswer> answer = url_.tls ? Talk(stream_, request, take) : Talk(socket_, request, take);
    if (answer.status().code() == absl::StatusCode::kUnavailable && !has_answer_) return Lost(answer.status());
    return answer;
  }

 private:
  // Runs one asynchronous operation to completion.
  template <typename Start>
  error_code Await(const Start& start) {
    std::optional<error_code> ended;
    const absl::Duration left = std::clamp(call_.deadline - base::SteadyNow(), absl::ZeroDuration(), kLongestSilence);
    socket_.expires_after(absl::ToChronoNanoseconds(left));
    start([&ended](error_code error, auto&&...) { ended = error; });
    // If the caller cancelled before this point, the cancellation preceded the operation and must be repeated.
    if (call_.stop.stop_requested()) asio::post(io_, [this] { socket_.cancel(); });
    io_.restart();
    while (!ended.has_value()) io_.run_one();
    return *ended;
  }

  absl::Status FailureOf(const error_code& error) const {
    if (call_.stop.stop_requested()) return absl::CancelledError("the caller has ended the call");
    if (base::SteadyNow() >= call_.deadline) return absl::DeadlineExceededError("the server did not answer in time");
    const std::string what = error == beast::error::timeout ? "the server sent nothing in time" : error.message();
    return absl::UnavailableError(absl::StrCat("the server ", url_.authority, " cannot be reached: ", what));
  }

  absl::Status Connect() {
    tcp::resolver::results_type addresses;
    error_code error = Await([&](auto done) {
      resolver_.async_resolve(url_.host, url_.port,
                              [&addresses, done](error_code failed, tcp::resolver::results_type found) mutable {
                                addresses = std::move(found);
                                done(failed);
                              });
    });
    if (error || call_.stop.stop_requested()) return FailureOf(error);
    error = Await([&](auto done) { socket_.async_connect(addresses, std::move(done)); });
    if (error) return FailureOf(error);
    if (!url_.tls) return absl::OkStatus();
    stream_.set_verify_callback(asio::ssl::host_name_verification(url_.host), error);
    if (error) return FailureOf(error);
    SSL_set_tlsext_host_name(stream_.native_handle(), url_.host.c_str());
    error = Await([&](auto done) { stream_.async_handshake(asio::ssl::stream_base::client, std::move(done)); });
    if (!error) return absl::OkStatus();
    const int64_t verified = SSL_get_verify_result(stream_.native_handle());
    absl::Status failure = FailureOf(error);
    if (failure.code() != absl::StatusCode::kUnavailable || verified == X509_V_OK) return failure;
    return absl::UnavailableError(absl::StrCat("the server ", url_.authority,
                                               " has no valid certificate: ", X509_verify_cert_error_string(verified)));
  }

  template <typename Stream>
  absl::StatusOr<HttpAnswer> Talk(Stream& stream, Request& request, const std::optional<Take>& take) {
    error_code error = Await([&](auto done) { http::async_write(stream, request, std::move(done)); });
    if (error) return FailureOf(error);
    Parser parser;
    parser.body_limit(boost::none);
    beast::flat_buffer buffer;
    error = Await([&](auto done) { http::async_read_header(stream, buffer, parser, std::move(done)); });
    if (error) return FailureOf(error);
    const bool is_ok = parser.get().result_int() < 300;
    EventStream events;
    std::string& body = parser.get().body();
    while (!parser.is_done()) {
      error = Await([&](auto done) { http::async_read_some(stream, buffer, parser, std::move(done)); });
      if (error) return FailureOf(error);
      if (body.size() > kMaxAnswerBytes) return absl::ResourceExhaustedError("the server's answer is too long");
      if (!take.has_value() || !is_ok) continue;
      std::vector<ServerEvent> ready;
      RETURN_IF_ERROR(events.Take(body, ready));
      body.clear();
      for (const ServerEvent& event : ready) {
        if (!(*take)(event)) return HttpAnswer{};
      }
    }
    has_answer_ = true;
    if (!is_ok) return ErrorOf(parser.get());
    return HttpAnswer{.media_type = std::string(parser.get()[http::field::content_type]), .body = std::move(body)};
  }

  const ServerUrl& url_;
  const HttpCall& call_;
  asio::io_context io_;
  tcp::resolver resolver_;
  TlsStream stream_;
  beast::tcp_stream& socket_;
  bool has_answer_ = false;  // a complete response
};

// OpenSSL accepts any text as an empty list of certificates.
bool HoldsCertificates(asio::ssl::context& tls) {
  return sk_X509_OBJECT_num(X509_STORE_get0_objects(SSL_CTX_get_cert_store(tls.native_handle()))) > 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpTransport>> HttpTransport::Create(const ServerUrl& url,
                                                                     const ImageClientOptions& options) {
  std::unique_ptr<HttpTransport> transport(new HttpTransport(url, options.api_key));
  if (!url.tls) return transport;
  asio::ssl::context& tls = transport->tls_;
  error_code error;
  SSL_CTX_set_min_proto_version(tls.native_handle(), TLS1_2_VERSION);
  tls.set_verify_mode(asio::ssl::verify_peer, error);
  if (options.root_certificates.empty()) {
    tls.set_default_verify_paths(error);
    if (error) return absl::UnavailableError("the system's certificate authorities cannot be read: " + error.message());
    return transport;
  }
  tls.add_certificate_authority(asio::buffer(options.root_certificates), error);
  if (!error && HoldsCertificates(tls)) return transport;
  return absl::InvalidArgumentError("the root certificates cannot be read; they must be the text of a PEM file");
}

absl::StatusOr<HttpAnswer> HttpTransport::Call(const HttpCall& call) const {
  return Exchange(url_, tls_, call).Run(RequestOf(call, url_, api_key_), std::nullopt);
}

absl::Status HttpTransport::Follow(const HttpCall& call, Take take) const {
  return Exchange(url_, tls_, call).Run(RequestOf(call, url_, api_key_), take).status();
}

bool WasLost(const absl::Status& status) { return status.GetPayload(kLost).has_value(); }

std::string PercentEncoded(const std::string& text) {
  std::string encoded;
  for (const char c : text) {
    if (absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-') {
      encoded.push_back(c);
    } else {
      absl::StrAppendFormat(&encoded, "%%%02X", static_cast<unsigned char>(c));
    }
  }
  return encoded;
}

}  // namespace tessera::client
