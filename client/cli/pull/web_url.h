// URLs of requests and redirects. Pure.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace tessera::client {

struct WebUrl {
  std::string text;    // complete, without a fragment
  std::string origin;  // scheme, host and port, which decide what may see the token: "https://huggingface.co:443"
  std::string host;    // for messages
  bool is_secure = false;
  bool has_credentials = false;
  bool has_query = false;
};

// Parses an absolute URL of http or https.
absl::StatusOr<WebUrl> ParseWebUrl(const std::string& text);

// Resolves the Location of a redirect, which may be relative, from the URL that was requested. Refuses credentials in
// it, and http unless `may_be_insecure`.
absl::StatusOr<WebUrl> ResolveRedirect(const WebUrl& requested, const std::string& location, bool may_be_insecure);

// Escapes a path for a URL; slashes stay.
std::string EscapedPath(const std::string& path);

}  // namespace tessera::client
