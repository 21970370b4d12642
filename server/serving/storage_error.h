// Errors that callers and operators get when the disk under the job store fails. Callers get UNAVAILABLE with a retry
// time, without names or the system's messages.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/log/log_line.h"
#include "server/jobs/storage_health.h"

namespace tessera::server {

// Returns whether a change that was refused with `status` may succeed later: the disk is in trouble, not the change.
bool IsStorageTrouble(const absl::Status& status);

// `status` comes from JobStore; errors that are not the disk's are returned unchanged.
absl::Status StorageErrorForCaller(const absl::Status& status);

// Returns the error for a change that failed and put the disk into `state`, which is more specific.
absl::Status StorageErrorForCaller(const absl::Status& status, StorageState state);

// Returns the error for calls while the disk is in this state.
absl::Status StorageErrorForCaller(StorageState state);

// Returns whether callers should stop waiting for the disk. Returns false for a damaged database, because calls never
// wait for that.
bool IsStorageStuck(const StorageTrouble& trouble, absl::Duration timeout);

// Returns the log line for the beginning, the change or the end of storage trouble.
base::LogLine StorageLogLine(const StorageTrouble& trouble);

}  // namespace tessera::server
