// LogLine is one line for operators: its severity, the kind of event, a sentence, and fields to filter by. It never
// contains what a caller asked to be drawn.
#pragma once

#include <array>
#include <boost/json/object.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera::base {

enum class LogLevel : uint8_t {
  kDebug,    // repeated health checks and scrapes with the same result
  kInfo,     // calls and normal operation
  kWarning,  // may need attention: a restart, a job that failed through no fault of the server
  kError,    // does not recover without intervention, or should never happen
};

constexpr auto NamesOf(LogLevel) { return std::array{"debug", "info", "warning", "error"}; }

struct LogLine {
  // A sentence alone is a line with level info.
  LogLine(std::string text) : text(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  LogLine(const char* text) : text(text) {}             // NOLINT(google-explicit-constructor)
  LogLine(LogLevel level, std::string text, boost::json::object fields = {})
      : level(level), text(std::move(text)), fields(std::move(fields)) {}

  // Converts to the sentence, for listeners that accept text.
  operator const std::string&() const { return text; }  // NOLINT(google-explicit-constructor)

  LogLevel level = LogLevel::kInfo;
  std::string event = "log";
  std::string text;            // empty: the fields are sufficient
  boost::json::object fields;  // must not use the names that LogText writes
};

// The destination of lines. Called from any thread.
using EventLog = std::function<void(const LogLine&)>;

// Returns one line of JSON without its newline: "time", "level", "event", "text", then the fields. Bytes that are not
// UTF-8 are replaced.
std::string LogText(const LogLine& line, absl::Time now);

}  // namespace tessera::base
