#include "server/http/http_message.h"

#include <algorithm>
#include <boost/beast/core/buffers_to_string.hpp>
#include <boost/beast/http/chunk_encode.hpp>
#include <boost/beast/http/empty_body.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/beast/http/serializer.hpp>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera::server {
namespace {

namespace beast = boost::beast;
namespace http = beast::http;
using boost::system::error_code;

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

std::string Decode(absl::string_view text, bool plus_is_blank) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    const int high = text[i] == '%' && i + 2 < text.size() ? HexDigit(text[i + 1]) : -1;
    const int low = high >= 0 ? HexDigit(text[i + 2]) : -1;
    if (low >= 0) {
      decoded.push_back(static_cast<char>(high * 16 + low));
      i += 2;
    } else {
      decoded.push_back(plus_is_blank && text[i] == '+' ? ' ' : text[i]);
    }
  }
  return decoded;
}

std::vector<std::pair<std::string, std::string>> QueryParameters(absl::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  for (absl::string_view part : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> sides = absl::StrSplit(part, absl::MaxSplits('=', 1));
    parameters.emplace_back(Decode(sides.first, true), Decode(sides.second, true));
  }
  return parameters;
}

std::string HeadText(http::response<http::empty_body>& head) {
  http::response_serializer<http::empty_body> serializer(head);
  serializer.split(true);
  std::string text;
  error_code error;
  serializer.next(error, [&](error_code&, const auto& buffers) { text = beast::buffers_to_string(buffers); });
  return text;
}

}  // namespace

absl::string_view HttpRequest::Path() const {
  const absl::string_view whole = target;
  return whole.substr(0, whole.find('?'));
}

absl::string_view HttpRequest::Query() const {
  const absl::string_view whole = target;
  const size_t mark = whole.find('?');
  return mark == absl::string_view::npos ? absl::string_view() : whole.substr(mark + 1);
}

std::optional<std::string> HttpRequest::Header(absl::string_view name) const {
  for (const HttpHeader& header : headers) {
    if (absl::EqualsIgnoreCase(header.name, name)) return header.value;
  }
  return std::nullopt;
}

size_t HttpRequest::CountHeaders(absl::string_view name) const {
  return std::count_if(headers.begin(), headers.end(),
                       [&](const HttpHeader& header) { return absl::EqualsIgnoreCase(header.name, name); });
}

std::string DecodePath(absl::string_view path) { return Decode(path, false); }

std::optional<std::string> QueryValue(absl::string_view query, absl::string_view name) {
  for (auto& [key, value] : QueryParameters(query)) {
    if (key == name) return std::move(value);
  }
  return std::nullopt;
}

std::vector<std::string> QueryNames(absl::string_view query) {
  std::vector<std::string> names;
  for (auto& [key, value] : QueryParameters(query)) names.push_back(std::move(key));
  return names;
}

std::string ResponseHead(const HttpResponse& response, BodyFraming framing, bool keep_alive) {
  http::response<http::empty_body> head(static_cast<http::status>(response.status), 11);
  for (const HttpHeader& header : response.headers) {
    // Control characters could begin another header, so they are removed from every value.
    std::string value = header.value;
    std::erase_if(value, [](unsigned char c) { return absl::ascii_iscntrl(c) && c != '\t'; });
    head.insert(header.name, value);
  }
  const bool has_body = response.status != 204 && response.status != 304;
  if (framing == BodyFraming::kLength && has_body) head.content_length(response.BodyBytes());
  if (framing == BodyFraming::kChunked) head.chunked(true);
  // Sent even if it is the default, for clients of HTTP/1.0.
  head.set(http::field::connection, keep_alive ? "keep-alive" : "close");
  return HeadText(head);
}

std::string ContinueHead() {
  http::response<http::empty_body> head(http::status::continue_, 11);
  return HeadText(head);
}

std::string ChunkHead(uint64_t part_bytes) { return absl::StrCat(absl::Hex(part_bytes), "\r\n"); }

std::string LastChunk() { return beast::buffers_to_string(http::make_chunk_last()); }

}  // namespace tessera::server
