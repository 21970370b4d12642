#include "client/cli/pull/web_url.h"

#include <curl/curl.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::client {
namespace {

constexpr size_t kMaxUrlBytes = 16384;

using UrlHandle = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

std::string PartOf(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
  const std::unique_ptr<char, decltype(&curl_free)> owned(text, &curl_free);
  return text;
}

absl::StatusOr<WebUrl> Described(CURLU* url) {
  WebUrl described = {.text = PartOf(url, CURLUPART_URL), .host = PartOf(url, CURLUPART_HOST)};
  const std::string scheme = absl::AsciiStrToLower(PartOf(url, CURLUPART_SCHEME));
  if ((scheme != "http" && scheme != "https") || described.host.empty() || described.text.empty()) {
    return absl::InvalidArgumentError("it is no URL of http or https");
  }
  described.is_secure = scheme == "https";
  described.has_credentials = !PartOf(url, CURLUPART_USER).empty() || !PartOf(url, CURLUPART_PASSWORD).empty();
  described.has_query = !PartOf(url, CURLUPART_QUERY).empty();
  described.origin = absl::StrCat(scheme, "://", absl::AsciiStrToLower(described.host), ":",
                                  PartOf(url, CURLUPART_PORT, CURLU_DEFAULT_PORT));
  return described;
}

// Sets the URL of the handle: relative to its present one if there is one.
absl::Status SetUrl(CURLU* url, const std::string& text) {
  const bool fits = !text.empty() && text.size() <= kMaxUrlBytes && text.find('\0') == std::string::npos;
  if (!fits || curl_url_set(url, CURLUPART_URL, text.c_str(), 0) != CURLUE_OK) {
    return absl::InvalidArgumentError("it is no URL");
  }
  curl_url_set(url, CURLUPART_FRAGMENT, nullptr, 0);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WebUrl> ParseWebUrl(const std::string& text) {
  const UrlHandle url(curl_url(), &curl_url_cleanup);
  RETURN_IF_ERROR(SetUrl(url.get(), text));
  return Described(url.get());
}

absl::StatusOr<WebUrl> ResolveRedirect(const WebUrl& requested, const std::string& location, bool may_be_insecure) {
  const UrlHandle url(curl_url(), &curl_url_cleanup);
  RETURN_IF_ERROR(SetUrl(url.get(), requested.text));
  absl::Status set = SetUrl(url.get(), location);
  const absl::StatusOr<WebUrl> target = set.ok() ? Described(url.get()) : absl::StatusOr<WebUrl>(set);
  if (!target.ok() || target->has_credentials) {
    return absl::FailedPreconditionError(absl::StrCat(requested.host, " redirects to an address that cannot be used"));
  }
  if (!target->is_secure && !may_be_insecure) {
    return absl::FailedPreconditionError(
        absl::StrCat(requested.host, " redirects to ", target->host, " without https, which is refused"));
  }
  return target;
}

std::string EscapedPath(const std::string& path) {
  std::string escaped;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '_' || c == '.' || c == '~' || c == '/') {
      escaped += c;
    } else {
      constexpr char kDigits[] = "0123456789ABCDEF";
      escaped += {'%', kDigits[byte >> 4], kDigits[byte & 15]};
    }
  }
  return escaped;
}

}  // namespace tessera::client
