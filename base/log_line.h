// What operators should know, one line at a time: how grave it is, which kind of event, a sentence, and fields to
// filter by. Nothing that a caller asked to be drawn is ever in it.
#pragma once

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
  kDebug,    // health checks and scrapes that were answered as the ones before
  kInfo,     // calls, and what goes as it should
  kWarning,  // what somebody may want to look at: a restart, a job that failed for a reason of its own
  kError,    // what does not get better by itself, and what should not happen
};

// "debug", "info", "warning", "error".
absl::string_view LogLevelName(LogLevel level);
std::vector<std::string> LogLevelNames();
// The level that has this name, which is one of them.
LogLevel LogLevelOf(absl::string_view name);

struct LogLine {
  // A sentence alone is a line of the level info.
  LogLine(std::string text) : text(std::move(text)) {}  // NOLINT(google-explicit-constructor)
  LogLine(const char* text) : text(text) {}             // NOLINT(google-explicit-constructor)
  LogLine(LogLevel level, std::string text, boost::json::object fields = {})
      : level(level), text(std::move(text)), fields(std::move(fields)) {}

  // A listener that takes text gets the sentence.
  operator const std::string&() const { return text; }  // NOLINT(google-explicit-constructor)

  LogLevel level = LogLevel::kInfo;
  std::string event = "log";
  std::string text;            // empty: the fields say it all
  boost::json::object fields;  // none of the names of LogText's own
};

// Where lines go. Called from any thread.
using EventLog = std::function<void(const LogLine&)>;

// One line of JSON without its end: "time", "level", "event", "text", then the fields. Bytes that are no UTF-8 are
// replaced.
std::string LogText(const LogLine& line, absl::Time now);

}  // namespace tessera::base
