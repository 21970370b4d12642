// Parses arbitrary bytes as a caller's URL, as the target of a redirect, as an entry of a list of hosts, and as the
// answer of the service that checks input. libcurl must understand every URL that was accepted in the same way.
#include <curl/curl.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"
#include "server/fetch/http_url.h"
#include "server/fetch/input_check_message.h"
#include "server/fetch/ip_address.h"

namespace {

using namespace tessera::server;

std::string Part(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (curl_url_get(url, part, &text, flags) != CURLUE_OK) return "";
  const std::string copy = text;
  curl_free(text);
  return copy;
}

void CheckAgainstCurl(const HttpUrl& url) {
  CURLU* parsed = curl_url();
  const std::string text = HttpUrlText(url);
  if (curl_url_set(parsed, CURLUPART_URL, text.c_str(), CURLU_PATH_AS_IS) != CURLUE_OK) std::abort();
  const bool is_v6 = url.address.has_value() && url.address->is_v6;
  const bool is_same = Part(parsed, CURLUPART_HOST) == (is_v6 ? "[" + url.host + "]" : url.host) &&
                       Part(parsed, CURLUPART_PORT, CURLU_DEFAULT_PORT) == std::to_string(url.port) &&
                       Part(parsed, CURLUPART_SCHEME) == (url.is_secure ? "https" : "http") &&
                       Part(parsed, CURLUPART_USER).empty() && Part(parsed, CURLUPART_PASSWORD).empty();
  if (!is_same) std::abort();
  curl_url_cleanup(parsed);
}

void CheckUrl(const HttpUrl& url) {
  const absl::StatusOr<HttpUrl> again = ParseHttpUrl(HttpUrlText(url));
  // The text has a port and a slash more, so it may be longer than a URL may be.
  if (again.ok() ? HttpUrlText(*again) != HttpUrlText(url) : HttpUrlText(url).size() <= kMaxUrlBytes) std::abort();
  CheckAgainstCurl(url);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  static const HttpUrl kFrom = ParseHttpUrl("https://a.example:444/b/c?d").value();
  if (const absl::StatusOr<HttpUrl> url = ParseHttpUrl(text); url.ok()) CheckUrl(*url);
  if (const absl::StatusOr<HttpUrl> url = ResolveLocation(kFrom, text); url.ok()) CheckUrl(*url);
  if (CheckHostPattern(text).ok() && MatchesHost("127.0.0.1", {std::string(text)})) std::abort();
  if (const std::optional<IpAddress> address = ParseIpAddress(text); address.has_value()) {
    if (ParseIpAddress(IpAddressText(*address)) != address) std::abort();
    if (IsPublicAddress(*address) && IsLoopback(*address)) std::abort();
  }
  if (const absl::StatusOr<Verdict> verdict = ParseVerdict(text); verdict.ok()) {
    if (verdict->reason.size() > kMaxReasonBytes || verdict->categories.size() > kMaxCategories) std::abort();
    if (verdict->reason.find_first_of("\r\n\x1b") != std::string::npos) std::abort();
  }
  return 0;
}
