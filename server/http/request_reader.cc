#include "server/http/request_reader.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <functional>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/text/string_views.h"
#include "server/http/http_server.h"

namespace tessera::server {
namespace {

namespace http = boost::beast::http;

// The bytes received for a body may be this many times its limit, because of the framing of its chunks.
constexpr size_t kWireBytesPerBodyByte = 4;

struct Refusal {
  int status;
  const char* reason;
};

Refusal RefusalOf(http::error error) {
  switch (error) {
    case http::error::header_limit:
      return {431, "the header of the request is too large"};
    case http::error::bad_version:
      return {505, "the version of HTTP is neither 1.0 nor 1.1"};
    case http::error::bad_content_length:
    case http::error::multiple_content_length:
      return {400, "Content-Length is not one whole number"};
    case http::error::bad_transfer_encoding:
      return {400, "Transfer-Encoding is malformed, or is sent together with a Content-Length"};
    case http::error::bad_chunk:
    case http::error::bad_chunk_extension:
      return {400, "a chunk of the body is malformed"};
    default:
      return {400, "this is not a request of HTTP/1.1"};
  }
}

// The parts of a target in absolute form (RFC 9112, section 3.2.2).
struct AbsoluteTarget {
  absl::string_view authority;
  absl::string_view rest;  // from the path on; empty or only a query: the path is "/"
};

std::optional<AbsoluteTarget> ReadAbsolute(absl::string_view target) {
  const size_t scheme_end = target.find("://");
  if (scheme_end == absl::string_view::npos) return std::nullopt;
  const absl::string_view scheme = target.substr(0, scheme_end);
  if (!absl::EqualsIgnoreCase(scheme, "http") && !absl::EqualsIgnoreCase(scheme, "https")) return std::nullopt;
  const absl::string_view rest = target.substr(scheme_end + 3);
  const size_t authority_end = std::min(rest.find_first_of("/?#"), rest.size());
  return AbsoluteTarget{.authority = rest.substr(0, authority_end), .rest = rest.substr(authority_end)};
}

}  // namespace

struct RequestReader::Parser {
  http::request_parser<http::string_body> request;
  // Bytes of the body that its length or the sizes of its chunks so far have announced; none of the last ones may have
  // been read.
  uint64_t announced = 0;
  std::function<void(uint64_t, boost::beast::string_view, boost::system::error_code&)> on_chunk =
      [this](uint64_t size, boost::beast::string_view, boost::system::error_code&) {
        announced = size > std::numeric_limits<uint64_t>::max() - announced ? std::numeric_limits<uint64_t>::max()
                                                                            : announced + size;
      };
};

RequestReader::RequestReader(const HttpLimits& limits) : limits_(limits) { Reset(); }
RequestReader::~RequestReader() = default;

void RequestReader::Reset() {
  parser_ = std::make_unique<Parser>();
  parser_->request.header_limit(static_cast<uint32_t>(limits_.header_bytes));
  parser_->request.body_limit(boost::none);  // the limit is checked here
  parser_->request.on_chunk_header(parser_->on_chunk);
  header_checked_ = is_large_allowed_ = false;
  most_body_bytes_ = limits_.body_bytes;
  body_wire_bytes_ = 0;
}

RequestReader::Progress RequestReader::Refuse(int status, std::string reason) {
  refusal_status_ = status;
  refusal_reason_ = std::move(reason);
  return Progress::kRefused;
}

RequestReader::Progress RequestReader::Read(std::string& input) {
  size_t taken = 0;
  const Progress progress = Parse(input, taken);
  input.erase(0, taken);
  return progress;
}

RequestReader::Progress RequestReader::Parse(const std::string& input, size_t& taken) {
  http::request_parser<http::string_body>& request = parser_->request;
  while (true) {
    // A body whose first chunk is the last one has at least five bytes. Beast 1.81 asserts that they are present once
    // it has seen the first three.
    const absl::string_view rest = absl::string_view(input).substr(taken);
    constexpr size_t kLeastOfLastChunk = 5;  // 0, CR LF, CR LF
    const bool begins_last_chunk = rest.size() < kLeastOfLastChunk && absl::StartsWith(rest, "0\r\n");
    if (begins_last_chunk && request.is_header_done() && request.chunked()) return Progress::kMore;
    boost::system::error_code error;
    const size_t consumed = request.put(boost::asio::const_buffer(input.data() + taken, input.size() - taken), error);
    taken += consumed;
    const bool starved = error == http::error::need_more;
    if (error && !starved) {
      if (error.category() != http::make_error_code(http::error::need_more).category()) {
        return Refuse(400, "this is not a request of HTTP/1.1");
      }
      const Refusal refusal = RefusalOf(static_cast<http::error>(error.value()));
      return Refuse(refusal.status, refusal.reason);
    }
    if (request.is_header_done()) {
      if (header_checked_) body_wire_bytes_ += consumed;
      if (!header_checked_ && !CheckHeader()) return Progress::kRefused;
      header_checked_ = true;
      // No byte of a body is read before its length or its chunk's size is known to be allowed.
      if (parser_->announced > most_body_bytes_) return is_large_allowed_ ? RefuseLarge() : Progress::kLarge;
    }
    if (request.is_done()) return Progress::kComplete;
    if (body_wire_bytes_ > kWireBytesPerBodyByte * most_body_bytes_ + limits_.header_bytes) return RefuseLarge();
    // The parser leaves at most one unfinished line.
    if (starved && input.size() - taken > limits_.header_bytes) return Refuse(431, "a line of the request is too long");
    if (starved || taken == input.size()) return Progress::kMore;
  }
}

bool RequestReader::CheckHeader() {
  const auto& request = parser_->request.get();
  const auto refuse = [&](int status, const char* reason) {
    Refuse(status, reason);
    return false;
  };
  const size_t lengths = request.count(http::field::content_length);
  const size_t codings = request.count(http::field::transfer_encoding);
  if (lengths > 1) return refuse(400, "Content-Length is given more than once");
  if (codings > 1) return refuse(400, "Transfer-Encoding is given more than once");
  if (lengths + codings > 1) return refuse(400, "Content-Length and Transfer-Encoding exclude each other");
  if (codings == 1) {
    const auto coding = request[http::field::transfer_encoding];
    if (!absl::EqualsIgnoreCase(base::AbslView(coding), "chunked")) {
      return refuse(501, "the only transfer coding is chunked");
    }
    if (request.version() < 11) return refuse(400, "HTTP/1.0 has no Transfer-Encoding");
  }
  const absl::string_view target = base::AbslView(request.target());
  if (!absl::StartsWith(target, "/") && !ReadAbsolute(target).has_value()) {
    return refuse(400, "the target of the request is neither a path, which begins with /, nor an http or https URL");
  }
  if (request.count(http::field::expect) > 0 && !expects_continue()) {
    return refuse(417, "the only expectation is 100-continue");
  }
  if (!parser_->request.chunked()) parser_->announced = parser_->request.content_length().value_or(0);
  return true;
}

std::optional<size_t> RequestReader::AllowLarge(size_t most) {
  is_large_allowed_ = true;
  most_body_bytes_ = std::max(most, limits_.body_bytes);
  if (parser_->announced > most_body_bytes_) {
    RefuseLarge();
    return std::nullopt;
  }
  return parser_->request.chunked() ? most_body_bytes_ : static_cast<size_t>(parser_->announced);
}

void RequestReader::ReserveLarge() {
  const size_t bytes = parser_->request.chunked() ? most_body_bytes_ : static_cast<size_t>(parser_->announced);
  parser_->request.get().body().reserve(bytes);
}

bool RequestReader::has_header() const { return header_checked_; }

bool RequestReader::expects_continue() const {
  const auto expect = parser_->request.get()[http::field::expect];
  return absl::EqualsIgnoreCase(base::AbslView(expect), "100-continue");
}

bool RequestReader::keep_alive() const { return parser_->request.keep_alive(); }

bool RequestReader::is_http_1_1() const { return parser_->request.get().version() >= 11; }

size_t RequestReader::body_bytes() const { return parser_->request.get().body().size(); }

HttpRequest RequestReader::Head() const {
  const auto& message = parser_->request.get();
  HttpRequest request;
  request.method = std::string(message.method_string());
  request.target = std::string(message.target());
  request.http_1_1 = message.version() >= 11;
  for (const auto& field : message) {
    request.headers.push_back({.name = std::string(field.name_string()), .value = std::string(field.value())});
  }
  if (!absl::StartsWith(request.target, "/")) {
    const std::string whole = request.target;
    const AbsoluteTarget parts = *ReadAbsolute(whole);
    request.target = absl::StrCat(absl::StartsWith(parts.rest, "/") ? "" : "/", parts.rest);
    // The target's host replaces that of the header.
    for (HttpHeader& header : request.headers) {
      if (absl::EqualsIgnoreCase(header.name, "host")) header.value = std::string(parts.authority);
    }
    if (request.CountHeaders("host") == 0 && !request.http_1_1) {
      request.headers.push_back({.name = "Host", .value = std::string(parts.authority)});
    }
  }
  return request;
}

HttpRequest RequestReader::TakeRequest() {
  HttpRequest request = Head();
  request.body = std::move(parser_->request.get().body());
  return request;
}

}  // namespace tessera::server
