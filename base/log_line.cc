#include "base/log_line.h"

#include <array>

#include "base/plain_json.h"
#include "base/utf8.h"

namespace tessera::base {
namespace {

constexpr std::array<const char*, 4> kNames = {"debug", "info", "warning", "error"};

}  // namespace

absl::string_view LogLevelName(LogLevel level) { return kNames.at(static_cast<size_t>(level)); }

std::vector<std::string> LogLevelNames() { return {kNames.begin(), kNames.end()}; }

LogLevel LogLevelOf(absl::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames.at(i)) return static_cast<LogLevel>(i);
  }
  return LogLevel::kInfo;
}

std::string LogText(const LogLine& line, absl::Time now) {
  boost::json::object object = {{"time", absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone())},
                                {"level", kNames.at(static_cast<size_t>(line.level))},
                                {"event", line.event}};
  if (!line.text.empty()) object["text"] = ReplaceInvalidUtf8(line.text);
  for (const boost::json::key_value_pair& field : line.fields) {
    const boost::json::string* text = field.value().if_string();
    object[field.key()] =
        text == nullptr ? field.value() : boost::json::value(ReplaceInvalidUtf8({text->data(), text->size()}));
  }
  return PlainJson(object);
}

}  // namespace tessera::base
