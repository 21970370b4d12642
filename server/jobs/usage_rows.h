// The rows of a job store's daily totals of usage, in SQLite and in PostgreSQL.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/api/key_usage.h"
#include "server/jobs/sql.h"

namespace tessera::server {

// Returns the number of the day in UTC since 1970.
int64_t UsageDayOf(absl::Time time);

// Adds to the totals of the day of `now`. `shard` is any number of the server: servers with different ones do not wait
// for each other. Usage without a key is ignored.
absl::Status AddUsageRow(SqlDatabase& database, absl::Time now, uint64_t shard, const KeyUsage& usage);

// Removes the totals of all days but the last kUsageDays that have any.
absl::Status RemoveOldUsage(SqlDatabase& database);

// Returns the totals by day, key and model, in this order. INVALID_ARGUMENT if there are more than kMaxUsageRows.
absl::StatusOr<std::vector<DayUsage>> ReadUsageRows(SqlDatabase& database, const UsageQuery& query);

}  // namespace tessera::server
