// What a job store holds, for those who are not its server. Nothing in it is changed.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/jobs/postgres.h"
#include "server/jobs/result_store.h"
#include "server/jobs/task_state.h"

namespace tessera::server {

struct StoreReport {
  bool in_use = false;                           // a server has it open
  int64_t servers = 0;                           // of one that is shared: those that live
  std::array<int64_t, kTaskStates> images = {};  // by state
  absl::Time newest = absl::InfinitePast();      // the newest time in the records
  absl::Time now;                                // by the clock of this machine, or of the database
};

// NOT_FOUND where there is none; DATA_LOSS for a damaged one, FAILED_PRECONDITION where it is not the one of `files`.
absl::StatusOr<StoreReport> InspectJobStore(const std::string& path, ResultStore& files);

// What to do with a store that is damaged or not whole.
inline constexpr char kStoreAdvice[] = "restore the data folder from a copy, or begin with a new one";

// FAILED_PRECONDITION where the database is missing or has no bytes, but its log or images are there: SQLite would
// throw the log away, and images without their rows would be swept.
absl::Status CheckNothingIsMissing(const std::string& path, ResultStore& files);

// FAILED_PRECONDITION where there are images beside a database in which no job ever was. `next` is NextNumber().
absl::Status CheckImagesAreKnown(uint64_t next, const std::string& path, ResultStore& files);

// The same of a database that servers share, which others may use now. NOT_FOUND where it has no tables yet.
absl::StatusOr<StoreReport> InspectSharedStore(const PostgresAddress& address);

}  // namespace tessera::server
