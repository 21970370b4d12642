// Where a server is, as a user types it.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace tessera::client {

struct ServerUrl {
  bool tls = false;
  std::string host;  // a name or an address, without the brackets of IPv6
  std::string port;
  std::string authority;  // as in a Host header

  bool IsLoopback() const;
};

// "https://images.example", "http://localhost:8080", "http://[::1]:8080/". INVALID_ARGUMENT for everything else.
absl::StatusOr<ServerUrl> ParseServerUrl(absl::string_view text);

}  // namespace tessera::client
