#include "server/otlp/otlp_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/macros/status_macros.h"
#include "server/config/header_lines.h"
#include "server/config/web_url.h"

namespace tessera::server {
namespace {

constexpr char kTracesPath[] = "/v1/traces";
constexpr char kDefaultService[] = "tessera";

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
  return ReadHeaderLines(settings.headers_file, "tracing.headers_file");
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
