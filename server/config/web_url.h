// WebUrl is an http or https URL of the configuration, parsed as browsers parse it. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::server {

struct WebUrl {
  // The origin as a browser writes it in the Origin header: lower case, without the scheme's default port (RFC 6454,
  // section 6.2).
  std::string origin;
  std::string path;  // "" or the part from the first slash on
};

// Returns nullopt for another scheme, a user, a query, a fragment, a wildcard or a host that is not ASCII, which no
// browser sends (it sends internationalized names in Punycode).
std::optional<WebUrl> ParseWebUrl(absl::string_view url);

}  // namespace tessera::server
