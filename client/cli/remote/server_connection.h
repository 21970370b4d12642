// Connects to the server that a command's options name, through the client library, and prepares the server's messages
// for the user.
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
  std::string api_key_file;  // empty: no API key
  std::string ca_file;       // PEM file; empty: the system's certificate authorities
};

// --server, --api-key-file and --server-ca.
void AddServerOptions(CLI::App& app, ServerOptions& options, bool required);

// Returns the client options for the server at `url`, with the key and the certificates read from their files.
// INVALID_ARGUMENT for an invalid file.
absl::StatusOr<ImageClientOptions> ClientOptionsFor(const ServerOptions& options, const ServerUrl& url, int retries);

struct ServerConnection {
  std::unique_ptr<ImageClient> client;
  bool sends_key_in_clear = false;  // without encryption over a network
};

// INVALID_ARGUMENT for an invalid URL or file. Does not connect yet. A server that cannot be reached or has no capacity
// is reported at once; lost requests are retried up to `retries` times in a row.
absl::StatusOr<ServerConnection> ConnectionTo(const ServerOptions& options, int retries);

// Converts an error of a call to the one that a command reports: a server without capacity is UNAVAILABLE, like an
// unreachable one.
absl::Status ErrorForUser(const absl::Status& status);

// Returns a server's text without terminal control characters and with bounded length.
std::string PrintableText(const std::string& text);

}  // namespace tessera::client
