#include "server/config/web_url.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace tessera::server {
namespace {

// Returns the host as browsers write it: "EXAMPLE.com" → "example.com", "[0:0::1]" → "[::1]".
std::optional<std::string> CanonicalHost(absl::string_view host) {
  if (absl::ConsumePrefix(&host, "[")) {
    in6_addr address;
    char text[INET6_ADDRSTRLEN];
    if (!absl::ConsumeSuffix(&host, "]") || inet_pton(AF_INET6, std::string(host).c_str(), &address) != 1) {
      return std::nullopt;
    }
    return absl::StrCat("[", inet_ntop(AF_INET6, &address, text, sizeof(text)), "]");
  }
  const bool is_name = !host.empty() && std::all_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isalnum(c) || c == '.' || c == '-' || c == '_';
  });
  if (!is_name) return std::nullopt;
  return absl::AsciiStrToLower(host);
}

// Returns the port of ":8080"; `none` without a port.
std::optional<uint32_t> PortOf(absl::string_view text, uint32_t none) {
  if (text.empty()) return none;
  uint32_t port = 0;
  const absl::string_view digits = text.substr(1);
  const bool valid = text[0] == ':' && !digits.empty() &&
                     std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
                     absl::SimpleAtoi(digits, &port) && port >= 1 && port <= 65535;
  if (!valid) return std::nullopt;
  return port;
}

}  // namespace

std::optional<WebUrl> ParseWebUrl(absl::string_view url) {
  const size_t scheme_end = url.find("://");
  if (scheme_end == absl::string_view::npos) return std::nullopt;
  const std::string scheme = absl::AsciiStrToLower(url.substr(0, scheme_end));
  if (scheme != "http" && scheme != "https") return std::nullopt;
  const uint32_t own_port = scheme == "http" ? 80 : 443;
  const absl::string_view rest = url.substr(scheme_end + 3);
  const absl::string_view authority = rest.substr(0, rest.find('/'));
  const absl::string_view path = rest.substr(authority.size());
  const bool plain_path = std::all_of(
      path.begin(), path.end(), [](char c) { return absl::ascii_isgraph(c) && c != '?' && c != '#' && c != '\\'; });
  const size_t bracket = authority.rfind(']');
  const size_t colon = authority.find(':', bracket == absl::string_view::npos ? 0 : bracket);
  const absl::string_view host = authority.substr(0, colon);
  const std::optional<std::string> name = CanonicalHost(host);
  const std::optional<uint32_t> port = PortOf(authority.substr(host.size()), own_port);
  if (!plain_path || !name.has_value() || !port.has_value()) return std::nullopt;
  return WebUrl{.origin = absl::StrCat(scheme, "://", *name, *port == own_port ? "" : absl::StrCat(":", *port)),
                .path = std::string(path)};
}

}  // namespace tessera::server
