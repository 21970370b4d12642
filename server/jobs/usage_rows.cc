#include "server/jobs/usage_rows.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"

namespace tessera::server {
namespace {

constexpr absl::CivilDay kFirstDay;  // 1970-01-01
constexpr uint64_t kShards = 16;
constexpr double kMicrosecondsPerSecond = 1e6;
constexpr double kMostDeviceSeconds = 1e8;  // of one call

// Workers measure the time. A wrong number must not keep an image from being stored, or make a total overflow.
int64_t Microseconds(double seconds) {
  if (!(seconds > 0)) return 0;  // NaN too
  return std::llround(std::min(seconds, kMostDeviceSeconds) * kMicrosecondsPerSecond);
}

}  // namespace

int64_t UsageDayOf(absl::Time time) { return absl::ToCivilDay(time, absl::UTCTimeZone()) - kFirstDay; }

absl::Status AddUsageRow(SqlDatabase& database, absl::Time now, uint64_t shard, const KeyUsage& usage) {
  if (usage.key.empty()) return absl::OkStatus();
  return database.Run(
      "INSERT INTO usage(day, tenant, model, shard, images, steps, device_microseconds) "
      "VALUES($1::bigint, $2::text, $3::text, $4::bigint, $5::bigint, $6::bigint, $7::bigint) "
      "ON CONFLICT(day, tenant, model, shard) DO UPDATE SET images = usage.images + excluded.images, "
      "steps = usage.steps + excluded.steps, "
      "device_microseconds = usage.device_microseconds + excluded.device_microseconds",
      {UsageDayOf(now), SqlValue::Text(usage.key), SqlValue::Text(usage.model), static_cast<int64_t>(shard % kShards),
       usage.images, usage.steps, Microseconds(usage.device_seconds)});
}

absl::Status RemoveOldUsage(SqlDatabase& database) {
  return database.Run(
      "DELETE FROM usage WHERE day < (SELECT MIN(day) FROM "
      "(SELECT DISTINCT day FROM usage ORDER BY day DESC LIMIT $1::bigint) AS kept)",
      {kUsageDays});
}

absl::StatusOr<std::vector<DayUsage>> ReadUsageRows(SqlDatabase& database, const UsageQuery& query) {
  std::vector<DayUsage> rows;
  RETURN_IF_ERROR(database.Visit(
      "SELECT day, tenant, model, CAST(SUM(images) AS bigint), CAST(SUM(steps) AS bigint), "
      "CAST(SUM(device_microseconds) AS bigint) FROM usage "
      "WHERE day BETWEEN $1::bigint AND $2::bigint AND ($3::bigint = 1 OR tenant = $4::text) "
      "GROUP BY day, tenant, model ORDER BY day, tenant, model LIMIT $5::bigint",
      {query.since - kFirstDay, query.until - kFirstDay, int64_t{!query.key.has_value()},
       SqlValue::Text(query.key.value_or("")), kMaxUsageRows + 1},
      [&](const SqlRow& row) {
        rows.push_back({.day = kFirstDay + row.Int(0),
                        .usage = {.key = std::string(row.Bytes(1)),
                                  .model = std::string(row.Bytes(2)),
                                  .images = row.Int(3),
                                  .steps = row.Int(4),
                                  .device_seconds = static_cast<double>(row.Int(5)) / kMicrosecondsPerSecond}});
      }));
  if (rows.size() <= static_cast<size_t>(kMaxUsageRows)) return rows;
  return absl::InvalidArgumentError(absl::StrCat("the days from `since` to `until` have more than ", kMaxUsageRows,
                                                 " rows; ask for fewer days, or for one key"));
}

}  // namespace tessera::server
