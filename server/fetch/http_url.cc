#include "server/fetch/http_url.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "base/text/nearest_name.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxHostBytes = 253, kMaxLabelBytes = 63;  // RFC 1035

absl::Status BadUrl(absl::string_view rest) { return absl::InvalidArgumentError(rest); }

// Browsers read a name whose last part is a number as an IPv4 address (URL Standard, 3.5), in decimal, octal or
// hexadecimal.
bool IsNumber(absl::string_view label) {
  if (absl::StartsWith(label, "0x")) return std::all_of(label.begin() + 2, label.end(), absl::ascii_isxdigit);
  return std::all_of(label.begin(), label.end(), absl::ascii_isdigit);
}

// Expects small letters.
bool IsHostName(absl::string_view host) {
  if (host.size() > kMaxHostBytes) return false;
  const std::vector<absl::string_view> labels = absl::StrSplit(host, '.');
  return !IsNumber(labels.back()) && std::all_of(labels.begin(), labels.end(), [](absl::string_view label) {
    return !label.empty() && label.size() <= kMaxLabelBytes && std::all_of(label.begin(), label.end(), [](char c) {
      return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_';
    });
  });
}

absl::Status ReadHost(absl::string_view text, HttpUrl& url) {
  const bool is_bracketed = absl::ConsumePrefix(&text, "[");
  if (is_bracketed && !absl::ConsumeSuffix(&text, "]")) return BadUrl(" has a host that is not valid");
  url.host = absl::AsciiStrToLower(text);
  url.address = ParseIpAddress(url.host);
  const bool is_v6 = url.address.has_value() && url.address->is_v6;
  if (is_v6 != is_bracketed || (!url.address.has_value() && !IsHostName(url.host))) {
    return BadUrl(
        absl::StrCat(" has the host ", base::QuotedValue(text), ", which is not valid; valid are host names"));
  }
  return absl::OkStatus();
}

absl::Status ReadPort(absl::string_view text, HttpUrl& url) {
  uint32_t port = url.is_secure ? 443 : 80;
  if (!text.empty()) {
    const absl::string_view digits = text.substr(1);
    const bool is_valid = text[0] == ':' && !digits.empty() && digits.size() <= 5 &&
                          std::all_of(digits.begin(), digits.end(), absl::ascii_isdigit) &&
                          absl::SimpleAtoi(digits, &port) && port >= 1 && port <= 65535;
    if (!is_valid) return BadUrl(" has a port that is not valid; valid are 1 to 65535");
  }
  url.port = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

// Removes "." and ".." from a path (RFC 3986, section 5.2.4).
std::string WithoutDots(absl::string_view path) {
  std::vector<absl::string_view> kept;
  const std::vector<absl::string_view> parts = absl::StrSplit(path.substr(1), '/');
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool is_dot = parts[i] == ".", is_up = parts[i] == "..";
    if (is_up && !kept.empty()) kept.pop_back();
    if (!is_dot && !is_up) kept.push_back(parts[i]);
    if ((is_dot || is_up) && i + 1 == parts.size()) kept.push_back("");
  }
  std::string text;
  for (const absl::string_view part : kept) absl::StrAppend(&text, "/", part);
  return text.empty() ? "/" : text;
}

}  // namespace

absl::StatusOr<HttpUrl> ParseHttpUrl(absl::string_view text) {
  if (text.size() > kMaxUrlBytes) {
    return BadUrl(absl::StrCat(" has ", text.size(), " bytes; valid are at most ", kMaxUrlBytes));
  }
  if (!std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isgraph(c) && c != '\\'; })) {
    return BadUrl(
        " has characters that a URL does not have; write others in percent-encoding, and internationalized host names "
        "in Punycode");
  }
  const size_t scheme_end = text.find("://");
  const absl::string_view scheme = text.substr(0, scheme_end == absl::string_view::npos ? 0 : scheme_end);
  HttpUrl url = {.is_secure = absl::EqualsIgnoreCase(scheme, "https")};
  if (!url.is_secure && !absl::EqualsIgnoreCase(scheme, "http")) return BadUrl(" is no URL of http or https");
  const absl::string_view rest = text.substr(scheme_end + 3);
  const absl::string_view whole = rest.substr(0, rest.find('#'));
  const absl::string_view authority = whole.substr(0, whole.find_first_of("/?"));
  if (absl::StrContains(authority, '@')) return BadUrl(" has a user or a password, which is not accepted");
  const size_t bracket = authority.rfind(']');
  const size_t colon = authority.find(':', bracket == absl::string_view::npos ? 0 : bracket);
  const absl::string_view host = authority.substr(0, colon);
  RETURN_IF_ERROR(ReadHost(host, url));
  RETURN_IF_ERROR(ReadPort(authority.substr(host.size()), url));
  const absl::string_view target = whole.substr(authority.size());
  url.target = absl::StrCat(absl::StartsWith(target, "/") ? "" : "/", target);
  return url;
}

absl::StatusOr<HttpUrl> ResolveLocation(const HttpUrl& from, absl::string_view location) {
  location = location.substr(0, location.find('#'));
  const size_t colon = location.find_first_of(":/?");
  if (colon != absl::string_view::npos && location[colon] == ':') return ParseHttpUrl(location);
  if (absl::StartsWith(location, "//"))
    return ParseHttpUrl(absl::StrCat(from.is_secure ? "https:" : "http:", location));
  // The rest of `from` is valid already; its target is replaced, and the whole is checked.
  HttpUrl base = from;
  const absl::string_view path = absl::string_view(from.target).substr(0, from.target.find('?'));
  if (absl::StartsWith(location, "?")) {
    base.target = absl::StrCat(path, location);
  } else if (!location.empty()) {
    const absl::string_view folder = absl::StartsWith(location, "/") ? "" : path.substr(0, path.rfind('/') + 1);
    const std::string joined = absl::StrCat(folder, location);
    const absl::string_view joined_path = absl::string_view(joined).substr(0, joined.find('?'));
    base.target = absl::StrCat(WithoutDots(joined_path), absl::string_view(joined).substr(joined_path.size()));
  }
  return ParseHttpUrl(HttpUrlText(base));
}

std::string HttpUrlText(const HttpUrl& url) {
  const bool is_v6 = url.address.has_value() && url.address->is_v6;
  return absl::StrCat(url.is_secure ? "https" : "http", "://", is_v6 ? "[" : "", url.host, is_v6 ? "]" : "", ":",
                      url.port, url.target);
}

absl::Status CheckHostPattern(absl::string_view pattern) {
  absl::string_view name = pattern;
  const bool is_wildcard = absl::ConsumePrefix(&name, "*.");
  if (IsHostName(absl::AsciiStrToLower(name)) && (!is_wildcard || absl::StrContains(name, '.')))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("holds ", base::QuotedValue(pattern),
                   "; valid values are host names such as images.example.org, and *.example.org for all names that end "
                   "so; no address, no port, and internationalized names in Punycode"));
}

bool MatchesHost(absl::string_view host, const std::vector<std::string>& patterns) {
  return std::any_of(patterns.begin(), patterns.end(), [&](absl::string_view pattern) {
    if (!absl::ConsumePrefix(&pattern, "*")) return absl::EqualsIgnoreCase(host, pattern);
    return host.size() > pattern.size() && absl::EndsWithIgnoreCase(host, pattern);
  });
}

}  // namespace tessera::server
