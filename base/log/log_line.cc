#include "base/log/log_line.h"

#include "base/fields/enum_names.h"
#include "base/json/plain_json.h"
#include "base/text/utf8.h"

namespace tessera::base {

std::string LogText(const LogLine& line, absl::Time now) {
  boost::json::object object = {{"time", absl::FormatTime(absl::RFC3339_full, now, absl::UTCTimeZone())},
                                {"level", EnumName(line.level)},
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
