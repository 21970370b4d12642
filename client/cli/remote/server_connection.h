// A server as the options of a command name it, through the client library, and what it says as a user reads it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cli/command_line.h"
#include "client/sdk/server_url.h"
#include "tessera/image_client.h"

namespace tessera::client {

struct ServerOptions {
  std::string url;
  std::string api_key_file;  // empty: no key
  std::string ca_file;       // PEM; empty: the certificate authorities that the system trusts
};

// --server, --api-key-file and --server-ca.
void AddServerOptions(CLI::App& app, ServerOptions& options, bool required);

// What the client of the server at `url` is told, the key and the certificates in the files included. INVALID_ARGUMENT
// for a file that is not valid.
absl::StatusOr<ImageClientOptions> ClientOptionsFor(const ServerOptions& options, const ServerUrl& url, int retries);

struct ServerConnection {
  std::unique_ptr<ImageClient> client;
  bool sends_key_in_clear = false;  // where others can read it
};

// INVALID_ARGUMENT for a URL or a file that is not valid. Connects to nothing yet. A server that cannot be reached or
// has no room is reported at once; what is lost on the way is tried again up to `retries` times in a row.
absl::StatusOr<ServerConnection> ConnectionTo(const ServerOptions& options, int retries);

// An error of a call, as a command reports it: a server that has no room is UNAVAILABLE, like one that is not there.
absl::Status ErrorForUser(const absl::Status& status);

// Text of a server without what a terminal would obey, and not endless.
std::string PrintableText(const std::string& text);

}  // namespace tessera::client
