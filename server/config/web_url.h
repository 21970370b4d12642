// WebUrl is an http or https URL of the configuration, taken apart as browsers do it. Pure functions.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::server {

struct WebUrl {
  // As a browser writes it in Origin: lower case, without the port where it is the scheme's own (RFC 6454,
  // section 6.2).
  std::string origin;
  std::string path;  // "" or from the first slash on
};

// Nothing for another scheme, a user, a query, a fragment, a wildcard or a host that is not ASCII, which no browser
// sends (it sends a name of another script in Punycode).
std::optional<WebUrl> ParseWebUrl(absl::string_view url);

}  // namespace tessera::server
