#include "server/otlp/otlp_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/files/file.h"
#include "base/macros/status_macros.h"
#include "server/config/web_url.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxHeaderFileBytes = 64 << 10;
constexpr char kTracesPath[] = "/v1/traces";
constexpr char kDefaultService[] = "tessera";

// The characters of RFC 9110, section 5.6.2.
bool IsHeaderName(absl::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isalnum(c) || absl::StrContains("!#$%&'*+-.^_`|~", absl::string_view(&c, 1));
  });
}

bool IsHeaderValue(absl::string_view value) {
  return !value.empty() && std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

// Returns the line of a header. Those that belong to the message itself are refused.
absl::StatusOr<std::string> HeaderLine(absl::string_view name, absl::string_view value) {
  if (!IsHeaderName(name)) {
    return absl::InvalidArgumentError(
        "a header has no valid name; valid are lines such as \"Authorization: Bearer …\"");
  }
  for (const char* own :
       {"content-type", "content-length", "content-encoding", "transfer-encoding", "host", "expect"}) {
    if (absl::EqualsIgnoreCase(name, own)) {
      return absl::InvalidArgumentError(absl::StrCat("the header ", name, " belongs to the message and cannot be set"));
    }
  }
  if (!IsHeaderValue(value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the header ", name, " has no valid value; valid are visible ASCII characters and spaces"));
  }
  return absl::StrCat(name, ": ", value);
}

std::optional<std::string> PercentDecoded(absl::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const absl::string_view digits = text.substr(i + 1, 2);
    if (digits.size() != 2 || !std::all_of(digits.begin(), digits.end(), absl::ascii_isxdigit)) return std::nullopt;
    decoded += static_cast<char>(std::stoi(std::string(digits), nullptr, 16));
    i += 2;
  }
  return decoded;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> ParseHeaderLines(absl::string_view text) {
  std::vector<std::string> headers;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    line = absl::StripAsciiWhitespace(line);
    if (line.empty() || line[0] == '#') continue;
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    ASSIGN_OR_RETURN(headers.emplace_back(), HeaderLine(parts.first, absl::StripAsciiWhitespace(parts.second)));
  }
  return headers;
}

absl::StatusOr<std::vector<std::string>> ParseHeaderVariable(absl::string_view text) {
  std::vector<std::string> headers;
  for (absl::string_view pair : absl::StrSplit(text, ',')) {
    pair = absl::StripAsciiWhitespace(pair);
    if (pair.empty()) continue;
    const std::pair<absl::string_view, absl::string_view> parts = absl::StrSplit(pair, absl::MaxSplits('=', 1));
    const std::optional<std::string> value = PercentDecoded(absl::StripAsciiWhitespace(parts.second));
    ASSIGN_OR_RETURN(headers.emplace_back(), HeaderLine(absl::StripAsciiWhitespace(parts.first), value.value_or("")));
  }
  return headers;
}

absl::StatusOr<std::vector<std::string>> HeaderLinesOf(const OtlpSettings& settings) {
  if (settings.headers_file.empty()) return settings.headers;
  const std::optional<std::string> text = base::ReadSmallFile(settings.headers_file, kMaxHeaderFileBytes);
  if (!text.has_value()) return absl::NotFoundError("tracing.headers_file cannot be read");
  if (text->size() > kMaxHeaderFileBytes) return absl::InvalidArgumentError("tracing.headers_file is too large");
  absl::StatusOr<std::vector<std::string>> headers = ParseHeaderLines(*text);
  if (headers.ok()) return headers;
  return absl::InvalidArgumentError(absl::StrCat("tracing.headers_file: ", headers.status().message()));
}

absl::StatusOr<OtlpSettings> OtlpSettingsOf(const TracingConfig& config, const Environment& environment) {
  OtlpSettings settings = {
      .url = config.endpoint, .service_name = config.service_name, .headers_file = config.headers_file};
  const auto variable = [&](const char* name) {
    return config.environment ? environment(name).value_or("") : std::string();
  };
  if (settings.url.empty()) {
    settings.url = variable("OTEL_EXPORTER_OTLP_ENDPOINT");
    if (settings.url.empty()) return OtlpSettings();
    if (!ParseWebUrl(settings.url).has_value()) {
      return absl::InvalidArgumentError(
          "OTEL_EXPORTER_OTLP_ENDPOINT must be a URL such as http://localhost:4318, with no user, query or fragment");
    }
  }
  settings.url = absl::StrCat(absl::StripSuffix(settings.url, "/"), kTracesPath);
  if (settings.service_name.empty()) settings.service_name = variable("OTEL_SERVICE_NAME");
  if (settings.service_name.empty()) settings.service_name = kDefaultService;
  if (settings.headers_file.empty()) {
    absl::StatusOr<std::vector<std::string>> headers = ParseHeaderVariable(variable("OTEL_EXPORTER_OTLP_HEADERS"));
    if (!headers.ok()) {
      return absl::InvalidArgumentError(absl::StrCat("OTEL_EXPORTER_OTLP_HEADERS: ", headers.status().message()));
    }
    settings.headers = *std::move(headers);
  }
  RETURN_IF_ERROR(HeaderLinesOf(settings).status());
  return settings;
}

}  // namespace tessera::server
