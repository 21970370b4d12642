// The query of GET /v1/usage and its answer. Pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "server/api/key_usage.h"

namespace tessera::server {

// Reads `since` and `until`, days such as 2026-11-29 in UTC, both included. Without them: the 30 days until `now`, or
// the 30 days until `until`. INVALID_ARGUMENT with the name of the parameter. Does not read `key`.
absl::StatusOr<UsageQuery> ReadUsageQuery(absl::string_view query, absl::Time now);

// Returns the answer: the days, and a row for each day, key and model.
std::string UsageJson(const UsageQuery& query, const std::vector<DayUsage>& rows);

}  // namespace tessera::server
