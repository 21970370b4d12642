// ServerUrl is the URL of a server, parsed from the user's text.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::client {

struct ServerUrl {
  bool tls = false;
  std::string host;  // a name or an address; IPv6 without brackets
  std::string port;
  std::string authority;  // as in a Host header

  bool IsLoopback() const;
};

// Parses "https://images.example", "http://localhost:8080" or "http://[::1]:8080/", for example. INVALID_ARGUMENT for a
// text that is no such URL.
absl::StatusOr<ServerUrl> ParseServerUrl(absl::string_view text);

}  // namespace tessera::client
