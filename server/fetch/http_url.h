// HttpUrl is a URL of http or https that was taken apart completely, so that no later reader of it can understand it
// otherwise. Pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/fetch/ip_address.h"

namespace tessera::server {

inline constexpr size_t kMaxUrlBytes = 8192;

struct HttpUrl {
  bool is_secure = false;
  std::string host;                  // in small letters; an address of IPv6 without brackets
  std::optional<IpAddress> address;  // if the host is an address
  uint16_t port = 0;
  std::string target;  // path and query, which begin with a slash; no fragment
};

// INVALID_ARGUMENT, with the rest of a message after the URL's name, for everything else than scheme, host, port, path
// and query in visible ASCII characters: users and passwords, backslashes, names that are not ASCII, addresses in other
// forms than four decimal numbers (2130706433, 0x7f.1, 0177.0.0.1).
absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text);

// Returns the URL of a redirect, whose Location may be relative to `from`. Errors are those of ParseHttpUrl.
absl::StatusOr<HttpUrl> ResolveLocation(const HttpUrl& from, absl::string_view location);

// Returns the URL with its port, for libcurl.
std::string HttpUrlText(const HttpUrl& url);

// Checks an entry of a list of hosts: a host name, or "*." and a name of at least two parts, which stands for all names
// that end so. INVALID_ARGUMENT, with the rest of a message.
absl::Status CheckHostPattern(absl::string_view pattern);

// Whether an entry stands for the host, which is in small letters.
bool MatchesHost(absl::string_view host, const std::vector<std::string>& patterns);

}  // namespace tessera::server
