#include "server/http/usage_json.h"

#include <boost/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/json/plain_json.h"
#include "base/macros/status_macros.h"
#include "server/api/field_checks.h"
#include "server/http/http_message.h"

namespace tessera::server {
namespace {

constexpr int64_t kDefaultDays = 30;
constexpr int64_t kFirstYear = 1970, kLastYear = 9999;

absl::StatusOr<absl::CivilDay> ReadDay(absl::string_view query, const char* name, absl::CivilDay fallback) {
  const std::optional<std::string> text = QueryValue(query, name);
  if (!text.has_value()) return fallback;
  absl::CivilDay day;
  // Only the form that the day is written in, so not 2026-2-30.
  if (absl::ParseCivilTime(*text, &day) && day.year() >= kFirstYear && day.year() <= kLastYear &&
      absl::FormatCivilTime(day) == *text) {
    return day;
  }
  return FieldError(
      name, absl::StrCat(" is ", QuotedValue(*text), "; it must be a day such as ", absl::FormatCivilTime(fallback)));
}

}  // namespace

absl::StatusOr<UsageQuery> ReadUsageQuery(absl::string_view query, absl::Time now) {
  UsageQuery read;
  ASSIGN_OR_RETURN(read.until, ReadDay(query, "until", absl::ToCivilDay(now, absl::UTCTimeZone())));
  ASSIGN_OR_RETURN(read.since, ReadDay(query, "since", read.until - (kDefaultDays - 1)));
  if (read.since <= read.until) return read;
  return FieldError("since", absl::StrCat(" is ", absl::FormatCivilTime(read.since),
                                          "; it must not be later than `until`, ", absl::FormatCivilTime(read.until)));
}

std::string UsageJson(const UsageQuery& query, const std::vector<DayUsage>& rows) {
  boost::json::array data;
  for (const DayUsage& row : rows) {
    data.push_back(boost::json::object{{"day", absl::FormatCivilTime(row.day)},
                                       {"key", row.usage.key},
                                       {"model", row.usage.model},
                                       {"images", row.usage.images},
                                       {"steps", row.usage.steps},
                                       {"device_seconds", row.usage.device_seconds}});
  }
  return base::PlainJson(boost::json::object{{"object", "usage"},
                                             {"since", absl::FormatCivilTime(query.since)},
                                             {"until", absl::FormatCivilTime(query.until)},
                                             {"data", std::move(data)}});
}

}  // namespace tessera::server
