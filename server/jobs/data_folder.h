// The names of what a server keeps in its data folder.
#pragma once

#include <array>

namespace tessera::server {

inline constexpr char kJobsFile[] = "jobs.sqlite";       // the queue, with -wal and -shm while it is open
inline constexpr char kJobsLock[] = "jobs.sqlite.lock";  // held by the server that uses the queue
inline constexpr char kServersFolder[] = "servers";      // of a shared data folder: NAME.lock for each server
inline constexpr char kImagesFolder[] = "images";
inline constexpr char kAdaptersFolder[] = "adapters";                // the server's own contents
inline constexpr char kContentsFolder[] = "contents";                // contents of keys
inline constexpr char kPictureSecret[] = "contents/picture-secret";  // for ServingContext::picture_key

// The folders whose files a backup contains.
inline constexpr std::array kKeptFolders = {kImagesFolder, kAdaptersFolder, kContentsFolder};

inline constexpr char kBackupFolder[] = "backup";  // of a backup that is being made
inline constexpr char kRestoreFolder[] =
    ".restore";  // of a restore that has not ended; no server starts while it exists

}  // namespace tessera::server
