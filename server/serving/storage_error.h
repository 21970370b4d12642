// What callers and operators are told when the disk under the job store fails. Callers get UNAVAILABLE, to be tried
// again, and nothing of names or of what the system said.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/log_line.h"
#include "server/jobs/storage_health.h"

namespace tessera::server {

// Whether a change that was refused with `status` may be made later: the disk is in trouble, not the change.
bool IsStorageTrouble(const absl::Status& status);

// `status` is one of JobStore's; other errors than the disk's stay as they are.
absl::Status StorageErrorForCaller(const absl::Status& status);

// The error of a change that failed and has brought the disk into a state, which says more.
absl::Status StorageErrorForCaller(const absl::Status& status, StorageState state);

// The error of calls that come while the disk is in this state.
absl::Status StorageErrorForCaller(StorageState state);

// Whether nobody is to wait for the disk any longer. What a damaged database does not take is not waited for at all.
bool IsStorageStuck(const StorageTrouble& trouble, absl::Duration timeout);

// The line of the log for its beginning, its change or its end.
base::LogLine StorageLogLine(const StorageTrouble& trouble);

}  // namespace tessera::server
