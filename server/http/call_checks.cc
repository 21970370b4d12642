#include "server/http/call_checks.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/api/generation_request.h"
#include "server/config/web_url.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxHostBytes = 255;

bool IsDigits(absl::string_view text) { return std::all_of(text.begin(), text.end(), absl::ascii_isdigit); }

// "[::1]:8080" → "[::1]"; nullopt for anything but a host with an optional port.
std::optional<std::string> HostWithoutPort(absl::string_view host) {
  if (host.empty() || host.size() > kMaxHostBytes) return std::nullopt;
  size_t end = 0;
  if (host[0] == '[') {
    const size_t bracket = host.find(']');
    if (bracket == absl::string_view::npos) return std::nullopt;
    end = bracket + 1;
  } else {
    end = std::min(host.find(':'), host.size());
  }
  const absl::string_view name = host.substr(0, end);
  const absl::string_view port = host.substr(end);
  const bool valid_port = port.empty() || (port[0] == ':' && port.size() <= 6 && IsDigits(port.substr(1)));
  const bool valid_name = !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::string_view(".-_[]:").find(c) != absl::string_view::npos;
  });
  if (!valid_port || !valid_name) return std::nullopt;
  return absl::AsciiStrToLower(name);
}

}  // namespace

std::optional<CheckFailure> CheckHost(const HttpRequest& request, const HostRules& rules) {
  const size_t hosts = request.CountHeaders("host");
  if (hosts == 0 && !request.http_1_1) return std::nullopt;
  if (hosts != 1) return CheckFailure{400, "the request must have exactly one Host header"};
  const std::optional<std::string> host = HostWithoutPort(*request.Header("host"));
  if (!host.has_value()) return CheckFailure{400, "the Host header is not a name with an optional port"};
  if (rules.loopback && (*host == "localhost" || *host == "127.0.0.1" || *host == "[::1]")) return std::nullopt;
  for (const std::string& valid : rules.hosts) {
    if (valid == "*" || absl::EqualsIgnoreCase(valid, *host)) return std::nullopt;
  }
  return CheckFailure{421, absl::StrCat("this server does not answer to the name ", QuotedValue(*host),
                                        "; valid names are those of hosts in its configuration")};
}

std::optional<CheckFailure> CheckOrigin(const HttpRequest& request, const HostRules& rules) {
  const std::optional<std::string> origin = request.Header("origin");
  if (!origin.has_value()) return std::nullopt;
  // A proxy may add the scheme's default port to Host; browsers never add it to Origin.
  const auto own =
      ParseWebUrl(absl::StrCat(request.secure ? "https://" : "http://", request.Header("host").value_or("")));
  if (own.has_value() && absl::EqualsIgnoreCase(*origin, own->origin)) return std::nullopt;
  for (const std::string& valid : rules.origins) {
    if (absl::EqualsIgnoreCase(valid, *origin)) return std::nullopt;
  }
  return CheckFailure{
      403, absl::StrCat("scripts of ", QuotedValue(*origin),
                        " may not call this server; valid origins are those of origins in its configuration")};
}

}  // namespace tessera::server
