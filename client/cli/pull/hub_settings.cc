#include "client/cli/pull/hub_settings.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/files/file.h"
#include "base/files/hub_folders.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "client/cli/pull/web_url.h"

namespace tessera::client {
namespace {

constexpr char kDefaultEndpoint[] = "https://huggingface.co";
constexpr size_t kMaxTokenBytes = 4096;

std::string Variable(const char* name) {
  const char* value = std::getenv(name);
  return std::string(absl::StripAsciiWhitespace(value == nullptr ? "" : value));
}

bool IsSet(const char* name) {
  const std::string value = absl::AsciiStrToUpper(Variable(name));
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

// A character that ends a line would add another header to every request.
absl::StatusOr<std::string> CheckedToken(const std::string& token, const std::string& source) {
  const bool is_text =
      std::ranges::all_of(token, [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
  if (token.size() <= kMaxTokenBytes && is_text) return token;
  return absl::InvalidArgumentError(
      absl::StrCat(source, " holds no access token; a token is a word such as hf_… from the settings of your account"));
}

absl::StatusOr<std::string> ReadToken() {
  for (const char* name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (const std::string token = Variable(name); !token.empty()) return CheckedToken(token, name);
  }
  std::string path = base::PathInEnvironment("HF_TOKEN_PATH");
  if (path.empty() && !base::HubHomeFolder().empty()) path = absl::StrCat(base::HubHomeFolder(), "/token");
  if (path.empty()) return "";
  const std::string text = base::ReadSmallFile(path, kMaxTokenBytes).value_or("");
  return CheckedToken(std::string(absl::StripAsciiWhitespace(text)), absl::StrCat("the token file ", path));
}

}  // namespace

absl::StatusOr<HubSettings> ReadHubSettings() {
  if (IsSet("HF_HUB_OFFLINE")) {
    return absl::InvalidArgumentError("HF_HUB_OFFLINE forbids downloads; unset it to download a model");
  }
  HubSettings settings = {.endpoint = Variable("HF_ENDPOINT"), .cache = base::HubCacheFolder()};
  if (settings.endpoint.empty()) settings.endpoint = kDefaultEndpoint;
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  const absl::StatusOr<WebUrl> endpoint = ParseWebUrl(settings.endpoint);
  if (!endpoint.ok() || endpoint->has_credentials || endpoint->has_query) {
    return absl::InvalidArgumentError(absl::StrCat(
        "HF_ENDPOINT is ", base::QuotedValue(settings.endpoint),
        "; valid is https:// or http://, a host and optionally a port and a path, as in ", kDefaultEndpoint));
  }
  if (settings.cache.empty()) {
    return absl::InvalidArgumentError("there is no folder for models; set HOME, HF_HOME or HF_HUB_CACHE");
  }
  ASSIGN_OR_RETURN(settings.token, ReadToken());
  return settings;
}

}  // namespace tessera::client
