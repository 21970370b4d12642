// Read-only access to one regular file by pread. Files are read and not mapped, so that a file which is cut short while
// in use is an error and never a signal.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace tessera::base {

// Owns a file descriptor. Read is thread-safe.
class ReadOnlyFile {
 public:
  // Follows symbolic links; refuses everything but a regular file, without blocking on a pipe. `name` appears in errors
  // in place of the path. NotFound, PermissionDenied or FailedPrecondition, as errno says.
  static absl::StatusOr<ReadOnlyFile> Open(const std::string& path, const std::string& name);

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }  // when it was opened

  // Fills `out` from that offset; DataLoss if the file ends before.
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const;

 private:
  ReadOnlyFile(FileDescriptor file, uint64_t size, const std::string& name)
      : file_(std::move(file)), size_(size), name_(name) {}

  FileDescriptor file_;
  uint64_t size_;
  std::string name_;
};

// The whole file; InvalidArgument if it is longer than max_bytes.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, const std::string& name, size_t max_bytes);

// The file's bytes, but no more than `limit` + 1 of them: whoever gets that many knows that it is too large. Nothing
// where it cannot be opened. For files that are small when they are what they should be, those of /proc and /sys
// among them, which tell no size beforehand.
std::optional<std::string> ReadSmallFile(const std::string& path, size_t limit);

// Whether `name` is one component of a path, so that it cannot lead out of a folder. (A symbolic link of that name can:
// download caches are made of links, and who can write a link into the folder can write the file too.)
bool IsPlainFileName(std::string_view name);

}  // namespace tessera::base
