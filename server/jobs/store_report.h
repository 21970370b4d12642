// StoreReport describes the contents of a job store for programs other than its server. Nothing in the store is
// changed.
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
  int64_t servers = 0;                           // live servers of a shared store
  std::array<int64_t, kTaskStates> images = {};  // by state
  absl::Time newest = absl::InfinitePast();      // newest time in the records
  absl::Time now;                                // by the clock of this machine or of the database
};

// NOT_FOUND: there is no store. DATA_LOSS: it is damaged. FAILED_PRECONDITION: it is not the store of `files`.
absl::StatusOr<StoreReport> InspectJobStore(const std::string& path, ResultStore& files);

// Advice for a damaged or incomplete store.
inline constexpr char kStoreAdvice[] = "restore the data folder from a backup, or use a new one";

// FAILED_PRECONDITION if the database is missing or empty although its log or images exist: SQLite would discard the
// log, and a sweep would remove images without rows.
absl::Status CheckNothingIsMissing(const std::string& path, ResultStore& files);

// FAILED_PRECONDITION if there are images although the database never had a job. `next` is NextNumber().
absl::Status CheckImagesAreKnown(uint64_t next, const std::string& path, ResultStore& files);

// Describes a database that servers share and may be using now. NOT_FOUND if it has no tables yet.
absl::StatusOr<StoreReport> InspectSharedStore(const PostgresAddress& address);

}  // namespace tessera::server
