// Writing a whole file or nothing: a reader of the path sees the old file or the complete new one, also after a crash.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/file_descriptor.h"

namespace tessera::base {

struct WriteFileOptions {
  bool overwrite = true;    // false: kAlreadyExists where the path exists, decided at the moment of the move
  bool owner_only = false;  // the file has mode 0600 whatever the umask
};

// Writes `bytes` to a hidden temporary file in the folder of `path`, syncs it, moves it to `path` and syncs the folder.
// On failure the temporary file is removed and the message names `path` and what is wrong with it. Blocks on the disk;
// may be called from any thread, also for one path at once: the last move wins. A symbolic link at `path` is replaced,
// not followed; a folder or device at `path` is refused. Only a process killed in between leaves a temporary file
// behind, named ".tessera-*.tmp".
[[nodiscard]] absl::Status WriteFileAtomically(const std::string& path, std::string_view bytes,
                                               const WriteFileOptions& options = {});

struct FileToWrite {
  std::string path;
  std::string_view bytes;
};

// WriteFileAtomically of each, with two syncs of their file system, which must be one, in place of two for each file.
// After an error some of them may be there.
[[nodiscard]] absl::Status WriteFilesAtomically(absl::Span<const FileToWrite> files,
                                                const WriteFileOptions& options = {});

// The same for a file that is written in parts. Movable; one thread at a time.
class AtomicFile {
 public:
  // Opens the temporary file.
  static absl::StatusOr<AtomicFile> Create(const std::string& path, const WriteFileOptions& options = {});

  AtomicFile(AtomicFile&& other) noexcept = default;
  AtomicFile& operator=(AtomicFile&& other) = delete;
  // Removes the temporary file unless Commit has moved it.
  ~AtomicFile();

  // Adds bytes at the end. After an error nothing more may be added.
  [[nodiscard]] absl::Status Append(std::string_view bytes);

  // Syncs the file, moves it to its path and syncs the folder. At most once.
  [[nodiscard]] absl::Status Commit();

  // The parts of Commit, for many files that are synced together. Sync also writes what others have changed in the file
  // system; false where the system does not say whether it could.
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
