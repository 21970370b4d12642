#include "server/http/http_message.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tessera {
namespace {

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

constexpr std::pair<int, const char*> kReasons[] = {
    {200, "OK"},
    {202, "Accepted"},
    {204, "No Content"},
    {304, "Not Modified"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {411, "Length Required"},
    {413, "Content Too Large"},
    {414, "URI Too Long"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {421, "Misdirected Request"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {499, "Client Closed Request"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
    {505, "HTTP Version Not Supported"},
};

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

absl::string_view ReasonPhrase(int status) {
  for (const auto& [code, reason] : kReasons) {
    if (code == status) return reason;
  }
  return "Unknown";
}

std::string ResponseHead(const HttpResponse& response, BodyFraming framing, bool keep_alive) {
  std::string head = absl::StrCat("HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status), "\r\n");
  for (const HttpHeader& header : response.headers) {
    absl::StrAppend(&head, header.name, ": ");
    // What would begin a header of its own is left out, wherever the value came from.
    for (const char c : header.value) {
      if (!absl::ascii_iscntrl(static_cast<unsigned char>(c)) || c == '\t') head.push_back(c);
    }
    head.append("\r\n");
  }
  switch (framing) {
    case BodyFraming::kLength:
      if (response.status != 204 && response.status != 304) {
        absl::StrAppend(&head, "Content-Length: ", response.body.size(), "\r\n");
      }
      break;
    case BodyFraming::kChunked:
      head.append("Transfer-Encoding: chunked\r\n");
      break;
    case BodyFraming::kUntilClose:
      break;
  }
  absl::StrAppend(&head, "Connection: ", keep_alive ? "keep-alive" : "close", "\r\n\r\n");
  return head;
}

}  // namespace tessera
