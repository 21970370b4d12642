// HttpExchange sends one HTTP request to an address that the caller has checked and returns the answer, with libcurl.
// It looks up no name, follows no redirect, uses no proxy of the environment, and sends no cookies and no passwords.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/fetch/http_url.h"
#include "server/fetch/ip_address.h"

namespace tessera::server {

struct HttpExchange {
  HttpUrl url;
  std::vector<IpAddress> addresses;  // the connection goes to one of these and to no other
  absl::Duration deadline;           // of the whole, a steady time (base/time/steady_time.h)
  size_t most_body_bytes = 0;
  size_t most_header_bytes = 32 << 10;    // of all header lines, those of interim answers too
  std::vector<std::string> headers = {};  // "Name: value", in addition to those of the protocol
  // The body of a POST, which is read once in parts: writes at most `most` bytes to `out` and returns their number.
  // Null: the request is a GET.
  std::function<size_t(char* out, size_t most)> body = nullptr;
  uint64_t body_bytes = 0;
  std::string authority_file = "";  // PEM, instead of the authorities that this machine trusts
};

struct HttpAnswer {
  int status = 0;
  std::string location;  // of a redirect; else empty
  std::string body;
};

// OK for every complete answer, whatever its status. RESOURCE_EXHAUSTED if it is larger than the bounds,
// DEADLINE_EXCEEDED, or UNAVAILABLE if the connection or its certificate failed. Messages name no host and no address.
absl::StatusOr<HttpAnswer> Exchange(const HttpExchange& exchange);

}  // namespace tessera::server
