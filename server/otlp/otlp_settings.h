// OtlpSettings are the destination of spans and their headers, from the configuration and, if it says so, the variables
// that OpenTelemetry defines for all programs.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/tracing_config.h"

namespace tessera::server {

struct OtlpSettings {
  std::string url;  // complete; empty: no spans are exported
  std::string service_name;
  std::string headers_file;          // its lines are header lines; empty: none
  std::vector<std::string> headers;  // header lines, "Name: value"
};

// Returns the value of an environment variable.
using Environment = std::function<std::optional<std::string>(const std::string& name)>;

// A setting of the configuration has precedence over its variable. INVALID_ARGUMENT for a variable or a file that is
// not valid, NOT_FOUND for a file that cannot be read. The message names no header's value.
absl::StatusOr<OtlpSettings> OtlpSettingsOf(const TracingConfig& config, const Environment& environment);

// Parses OTEL_EXPORTER_OTLP_HEADERS, "name=value,name=value" with values in percent-encoding, into header lines.
absl::StatusOr<std::vector<std::string>> ParseHeaderVariable(absl::string_view text);

// Returns the header lines of the next request; reads the file, so that its secrets can be changed.
absl::StatusOr<std::vector<std::string>> HeaderLinesOf(const OtlpSettings& settings);

}  // namespace tessera::server
