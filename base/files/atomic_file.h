// Writes a file completely or not at all: a reader of the path sees the old file or the complete new one, also after a
// crash.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/files/file_descriptor.h"

namespace tessera::base {

// Writes all bytes to an open file. Returns 0 or the errno of the failure, after which some may have been written.
int WriteBytes(int file, std::string_view bytes);

struct WriteFileOptions {
  bool overwrite = true;    // false: kAlreadyExists if the path exists, checked atomically with the move
  bool owner_only = false;  // the file has mode 0600, regardless of the umask
};

// Writes `bytes` to a hidden temporary file in the folder of `path`, syncs it, moves it to `path` and syncs the folder.
// On failure the temporary file is removed and the message names `path` and the problem. Blocks on the disk. May be
// called from any thread, also concurrently for one path: the last move wins. A symbolic link at `path` is replaced,
// not followed; a folder or device at `path` is refused. A temporary file, named ".tessera-*.tmp", remains only if the
// process is killed during the call.
[[nodiscard]] absl::Status WriteFileAtomically(const std::string& path, std::string_view bytes,
                                               const WriteFileOptions& options = {});

struct FileToWrite {
  std::string path;
  std::string_view bytes;
};

// Calls WriteFileAtomically for each file, with two syncs of their file system in place of two per file. All files must
// be in one file system. After an error some of them may have been written.
[[nodiscard]] absl::Status WriteFilesAtomically(absl::Span<const FileToWrite> files,
                                                const WriteFileOptions& options = {});

// WriteFileAtomically for a file that is written in parts. Movable; one thread at a time.
class AtomicFile {
 public:
  // Opens the temporary file.
  static absl::StatusOr<AtomicFile> Create(const std::string& path, const WriteFileOptions& options = {});

  AtomicFile(AtomicFile&& other) noexcept = default;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  // Removes the temporary file unless Commit has moved it.
  ~AtomicFile();

  // Appends bytes. After an error nothing more may be appended.
  [[nodiscard]] absl::Status Append(std::string_view bytes);

  // Syncs the file, moves it to its path and syncs the folder. At most once.
  [[nodiscard]] absl::Status Commit();

  // The parts of Commit, for many files that are synced together. Sync also writes changes of other processes in the
  // file system. SyncsTogether returns false if the operating system does not report whether such a sync succeeded.
  static bool SyncsTogether();
  [[nodiscard]] absl::Status SyncFileSystem();
  [[nodiscard]] absl::Status Move();

 private:
  AtomicFile() = default;

  std::string path_, folder_path_, name_, temporary_;
  bool overwrite_ = true;
  FileDescriptor folder_, file_;
};

}  // namespace tessera::base
