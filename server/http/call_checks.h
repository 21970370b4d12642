// What is checked of every HTTP request before it means anything. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace tessera::server {

// Which names a server answers to, against pages that point a name of theirs at it.
struct HostRules {
  bool loopback = true;              // localhost, 127.0.0.1 and [::1] are valid names
  std::vector<std::string> hosts;    // further ones, without port; "*": all
  std::vector<std::string> origins;  // of pages whose scripts may call: "https://studio.example"
};

// The error, or nothing. 400 for more than one Host, or none in HTTP/1.1; 421 for one that is not served. HTTP/1.0
// without one, as load balancers probe, is answered: no browser sends it, so no page can point a name at the server by
// it.
struct CheckFailure {
  int status;
  std::string message;
};
std::optional<CheckFailure> CheckHost(const HttpRequest& request, const HostRules& rules);

// 403 for a page of another origin: no scripts of other sites, unless the rules name them.
std::optional<CheckFailure> CheckOrigin(const HttpRequest& request, const HostRules& rules);

}  // namespace tessera::server
