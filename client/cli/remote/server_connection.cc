#include "client/cli/remote/server_connection.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/utf8.h"
#include "client/cli/file_bytes.h"
#include "server/api/generation_request.h"

namespace tessera::client {
namespace {

constexpr size_t kMaxShownBytes = 2000;
constexpr size_t kMaxKeyBytes = 4096;

// Reads the file that an option names; empty without a name.
absl::StatusOr<std::string> ReadOptionFile(const std::string& path) {
  if (path.empty()) return "";
  absl::StatusOr<std::string> bytes = ReadFileBytes(path);
  if (!bytes.ok()) return absl::InvalidArgumentError(std::string(bytes.status().message()));
  return bytes;
}

absl::StatusOr<std::string> ReadKey(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string bytes, ReadOptionFile(path));
  std::string key(absl::StripAsciiWhitespace(bytes));
  const bool is_key = !key.empty() && key.size() <= kMaxKeyBytes && std::ranges::all_of(key, absl::ascii_isgraph);
  if (path.empty() || is_key) return key;
  return absl::InvalidArgumentError(absl::StrCat("the file ", server::QuotedValue(path),
                                                 " holds no API key; it must hold the secret alone, in one line"));
}

}  // namespace

void AddServerOptions(CLI::App& app, ServerOptions& options, bool required) {
  BeginGroup(app, "Server");
  AddText(app,
          {.names = "--server",
           .help = required ? "The server, such as http://localhost:8080"
                            : "Let a server make the images, such as http://localhost:8080",
           .type = "URL",
           .required = required},
          options.url);
  AddText(app, {"--api-key-file", "File with the secret of an API key of the server", "FILE"}, options.api_key_file);
  AddText(app, {"--server-ca", "PEM file of the authorities for an https:// server (default: the system's)", "FILE"},
          options.ca_file);
}

absl::StatusOr<ImageClientOptions> ClientOptionsFor(const ServerOptions& options, const ServerUrl& url, int retries) {
  ImageClientOptions client = {
      .address = url.authority, .key_in_clear = true, .tls = url.tls, .retries = retries, .retry_refusals = false};
  ASSIGN_OR_RETURN(client.api_key, ReadKey(options.api_key_file));
  ASSIGN_OR_RETURN(const std::string certificates, ReadOptionFile(options.ca_file));
  if (url.tls) client.root_certificates = certificates;
  return client;
}

absl::StatusOr<ServerConnection> ConnectionTo(const ServerOptions& options, int retries) {
  ASSIGN_OR_RETURN(const ServerUrl url, ParseServerUrl(options.url));
  ASSIGN_OR_RETURN(const ImageClientOptions client, ClientOptionsFor(options, url, retries));
  ServerConnection connection = {.sends_key_in_clear = !client.api_key.empty() && !url.tls && !url.IsLoopback()};
  ASSIGN_OR_RETURN(connection.client, ImageClient::Create(client));
  return connection;
}

absl::Status ErrorForUser(const absl::Status& status) {
  if (status.ok()) return status;
  const Refusal refusal = RefusalOf(status);
  const bool has_no_room = status.code() == absl::StatusCode::kResourceExhausted && refusal.retry_after.has_value();
  return absl::Status(
      has_no_room ? absl::StatusCode::kUnavailable : status.code(),
      absl::StrCat(refusal.code.empty() ? "" : "the server reports: ", PrintableText(std::string(status.message())),
                   refusal.retry_after.has_value()
                       ? absl::StrCat("; retry in ", absl::ToInt64Seconds(*refusal.retry_after), " s")
                       : ""));
}

std::string PrintableText(const std::string& text) {
  std::string safe = base::ReplaceInvalidUtf8(text.substr(0, kMaxShownBytes));
  for (char& c : safe) {
    if (absl::ascii_iscntrl(static_cast<unsigned char>(c))) c = ' ';
  }
  return safe;
}

}  // namespace tessera::client
