#include "client/sdk/server_url.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera::client {

bool ServerUrl::IsLoopback() const {
  const bool is_address =
      std::all_of(host.begin(), host.end(), [](char c) { return c == '.' || absl::ascii_isdigit(c); });
  return host == "localhost" || host == "::1" || (is_address && absl::StartsWith(host, "127."));
}

absl::StatusOr<ServerUrl> ParseServerUrl(absl::string_view text) {
  const auto invalid = [text] {
    return absl::InvalidArgumentError(
        absl::StrCat("server is '", absl::Utf8SafeCEscape(text),
                     "'; it must be http:// or https://, a host and perhaps a port, such as http://localhost:8080"));
  };
  ServerUrl url;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "https://")) {
    url.tls = true;
  } else if (!absl::ConsumePrefix(&rest, "http://")) {
    return invalid();
  }
  absl::ConsumeSuffix(&rest, "/");
  url.authority = std::string(rest);
  size_t end = rest.find(':');
  if (!rest.empty() && rest[0] == '[') {
    const size_t bracket = rest.find(']');
    if (bracket == absl::string_view::npos) return invalid();
    url.host = std::string(rest.substr(1, bracket - 1));
    end = bracket + 1 == rest.size() ? absl::string_view::npos : bracket + 1;
    if (end != absl::string_view::npos && rest[end] != ':') return invalid();
    if (!std::all_of(url.host.begin(), url.host.end(), [](char c) { return absl::ascii_isxdigit(c) || c == ':'; })) {
      return invalid();
    }
  } else {
    url.host = std::string(rest.substr(0, end));
    if (!std::all_of(url.host.begin(), url.host.end(),
                     [](char c) { return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_'; })) {
      return invalid();
    }
  }
  if (url.host.empty()) return invalid();
  url.port = url.tls ? "443" : "80";
  if (end != absl::string_view::npos) {
    url.port = std::string(rest.substr(end + 1));
    uint32_t number = 0;
    const bool digits = std::all_of(url.port.begin(), url.port.end(), absl::ascii_isdigit);
    if (!digits || !absl::SimpleAtoi(url.port, &number) || number == 0 || number > 65535) return invalid();
  }
  return url;
}

}  // namespace tessera::client
