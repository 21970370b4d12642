// Checks of every HTTP request before its content is used. Pure functions.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "server/http/http_message.h"

namespace tessera::server {

// The host names that a server accepts, against pages that resolve a name of their site to the server (DNS rebinding).
struct HostRules {
  bool loopback = true;              // localhost, 127.0.0.1 and [::1] are valid names
  std::vector<std::string> hosts;    // further ones, without port; "*": all
  std::vector<std::string> origins;  // of pages whose scripts may call: "https://studio.example"
};

// CheckHost returns an error or nullopt. 400: more than one Host header, or none in HTTP/1.1. 421: a host that is not
// served. HTTP/1.0 without Host, which load balancers use for probes, is accepted: no browser sends it, so DNS
// rebinding cannot use it.
struct CheckFailure {
  int status;
  std::string message;
};
std::optional<CheckFailure> CheckHost(const HttpRequest& request, const HostRules& rules);

// 403 for a request from a page of another origin, unless the rules name it.
std::optional<CheckFailure> CheckOrigin(const HttpRequest& request, const HostRules& rules);

}  // namespace tessera::server
