// Restore makes a data folder from the archive of a backup (backup.h).
//
// All files are written to a hidden folder inside the data folder and checked there, with the job store. Then they are
// moved to their places, the job store last. The hidden folder exists until everything is durable, and no server starts
// while it does (CheckNoRestore), so a restore that is interrupted is never taken for a complete one. It is repeated
// from its beginning.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/backup/archive_reader.h"

namespace tessera::server {

struct RestoreOptions {
  std::string data_folder;  // created if it does not exist
  bool replace = false;     // move what the folder has out of the way
};

struct RestoreSummary {
  BackupManifest manifest;
  std::string moved_to;  // the folder that has what was replaced; empty: nothing was
};

// FAILED_PRECONDITION: a server or a backup uses the folder; the folder is not empty and `replace` is false (the
// message names what would be moved); or the backup has a newer schema or format. INVALID_ARGUMENT: the archive is
// refused (archive_reader.h). DATA_LOSS: its job store is damaged. RESOURCE_EXHAUSTED: the disk is full. UNAVAILABLE:
// another disk error. After any error before the files are moved, the folder is as before.
absl::StatusOr<RestoreSummary> Restore(const RestoreOptions& options, ArchiveReader::Source source);

// FAILED_PRECONDITION while a restore of this data folder has not ended.
absl::Status CheckNoRestore(const std::string& data_folder);

}  // namespace tessera::server
