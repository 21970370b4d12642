// BackUp writes a consistent copy of a data folder to an archive while a server may be using the folder.
//
// The jobs of the archive never refer to an image that the archive lacks. Neither order of copying gives this alone: a
// server writes an image before the row that refers to it, and retention removes the row before the image. Therefore
// the files are copied first; then the database is copied (a snapshot of one moment), and those files that only the
// snapshot knows are added. If one of them is gone, either retention removed it after the snapshot, and the next
// snapshot does not refer to it, or it had been missing before, and the next snapshot still does. So snapshots are
// repeated until nothing new is missing. Images whose rows are gone may remain in the archive; the server that starts
// on a restored folder removes them.
//
// The same order serves the contents of jobs: a content is stored before the job that names it, and is kept for minutes
// after its last use, which is longer than the time between the two listings of a folder.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/backup/archive_writer.h"
#include "server/jobs/failpoint.h"

namespace tessera::server {

struct BackupOptions {
  std::string data_folder;
  // Images and contents alone, for servers whose jobs are in PostgreSQL.
  bool files_only = false;
  int64_t now_s = 0;  // seconds since 1970
  // Reaches "backup.after_files" and, for each snapshot, "backup.after_snapshot". May be empty.
  AtPoint at_point = nullptr;
};

// Returns the manifest of the archive after all of it was passed to `sink`. The snapshot needs as much space in the
// data folder as the database, and is removed. FAILED_PRECONDITION: there is no job store, another backup is being
// made, or a restore has not ended. DATA_LOSS: the job store is damaged. RESOURCE_EXHAUSTED: the disk is full.
// UNAVAILABLE: the disk has an error, or jobs end faster than their images can be copied. Errors of `sink`.
absl::StatusOr<BackupManifest> BackUp(const BackupOptions& options, ArchiveWriter::Sink sink);

}  // namespace tessera::server
