#include "server/fetch/url_fetcher.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"
#include "base/time/steady_time.h"
#include "server/api/field_checks.h"
#include "server/api/service_error.h"

namespace tessera::server {
namespace {

absl::Status UrlError(absl::string_view rest) { return WithErrorCode(FieldError(kImageUrlField, rest), kImageUrlCode); }

// Names without a public address and names without any are answered alike, so that a caller cannot explore the network
// of this server.
absl::Status UnreachableHost(const HttpUrl& url) {
  return UrlError(absl::StrCat(" has the host ", base::QuotedValue(url.host), ", which could not be reached"));
}

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 || status == 308;
}

}  // namespace

UrlFetcher::UrlFetcher(Options options)
    : options_(std::move(options)),
      resolver_(options_.resolver ? options_.resolver : SystemResolver()),
      slots_(options_.concurrency) {}

absl::Status UrlFetcher::CheckUrl(const HttpUrl& url) const {
  if (!MatchesHost(url.host, options_.hosts)) {
    return UrlError(
        absl::StrCat(" has the host ", base::QuotedValue(url.host),
                     ", which is not among those from which this server fetches pictures; send a data URL"));
  }
  if (url.port != 80 && url.port != 443 && !options_.allow_loopback_for_tests) {
    return UrlError(absl::StrCat(" has the port ", url.port, "; valid are 80 and 443"));
  }
  return absl::OkStatus();
}

absl::StatusOr<HttpAnswer> UrlFetcher::FetchOnce(const HttpUrl& url, absl::Duration deadline) const {
  absl::StatusOr<std::vector<IpAddress>> addresses = resolver_(url.host, deadline);
  const bool is_reachable =
      addresses.ok() && !addresses->empty() && std::ranges::all_of(*addresses, [this](const IpAddress& address) {
        return IsPublicAddress(address) || (options_.allow_loopback_for_tests && IsLoopback(address));
      });
  if (!is_reachable) return UnreachableHost(url);
  absl::StatusOr<HttpAnswer> answer = Exchange({.url = url,
                                                .addresses = *std::move(addresses),
                                                .deadline = deadline,
                                                .most_body_bytes = options_.most_bytes,
                                                .authority_file = options_.authority_file_for_tests});
  if (answer.ok()) return answer;
  if (absl::IsResourceExhausted(answer.status())) {
    return UrlError(
        absl::StrCat(" leads to a file that is too large; valid are at most ", options_.most_bytes, " bytes"));
  }
  return UrlError(absl::StrCat(" could not be read from its host: ", answer.status().message()));
}

absl::StatusOr<std::string> UrlFetcher::Fetch(absl::string_view text) {
  if (options_.hosts.empty()) return UrlError(" is a URL, and this server fetches none; send a data URL");
  const absl::Duration deadline = base::SteadyNow() + options_.timeout;
  absl::StatusOr<HttpUrl> url = ParseHttpUrl(text);
  if (!url.ok()) return UrlError(url.status().message());
  RETURN_IF_ERROR(CheckUrl(*url));
  const CallSlots::Slot slot(slots_, deadline);
  if (!slot.is_taken()) {
    return WithRetryAfter(absl::UnavailableError("the server fetches too many pictures at present"), absl::Seconds(5));
  }
  for (int redirects = 0; redirects <= kMaxRedirects; ++redirects) {
    ASSIGN_OR_RETURN(HttpAnswer answer, FetchOnce(*url, deadline));
    if (answer.status == 200) return std::move(answer.body);
    if (!IsRedirect(answer.status))
      return UrlError(absl::StrCat(" is answered by its host with status ", answer.status));
    absl::StatusOr<HttpUrl> next = ResolveLocation(*url, answer.location);
    if (!next.ok() || answer.location.empty()) return UrlError(" is redirected to a URL that is not valid");
    if (url->is_secure && !next->is_secure) return UrlError(" is redirected from https to http, which is refused");
    if (const absl::Status allowed = CheckUrl(*next); !allowed.ok()) {
      return UrlError(" is redirected to a host or a port that is not allowed");
    }
    url = *std::move(next);
  }
  return UrlError(absl::StrCat(" is redirected more than ", kMaxRedirects, " times"));
}

}  // namespace tessera::server
