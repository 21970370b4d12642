// Read-only access to one regular file by pread. Files are read and not mapped, so that a file which is truncated while
// in use causes an error and never a signal.
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
#include "base/files/file_descriptor.h"

namespace tessera::base {

// Owns a file descriptor. Read is thread-safe.
class ReadOnlyFile {
 public:
  // Follows symbolic links; refuses everything but a regular file, without blocking on a pipe. `name` appears in errors
  // in place of the path. Returns NotFound, PermissionDenied or FailedPrecondition, depending on errno.
  static absl::StatusOr<ReadOnlyFile> Open(const std::string& path, const std::string& name);

  const std::string& name() const { return name_; }
  uint64_t size() const { return size_; }  // at the time it was opened

  // Fills `out` with bytes starting at `offset`; DataLoss if the file ends too early.
  absl::Status Read(uint64_t offset, std::span<std::byte> out) const;

 private:
  ReadOnlyFile(FileDescriptor file, uint64_t size, const std::string& name)
      : file_(std::move(file)), size_(size), name_(name) {}

  FileDescriptor file_;
  uint64_t size_;
  std::string name_;
};

// Returns the whole file; InvalidArgument if it is longer than max_bytes.
absl::StatusOr<std::string> ReadWholeFile(const std::string& path, const std::string& name, size_t max_bytes);

// Returns at most `limit` + 1 bytes of the file: a result of that size means that the file is too large. Returns
// nothing if the file cannot be opened. For files that should be small, including those of /proc and /sys, which do not
// report their size.
std::optional<std::string> ReadSmallFile(const std::string& path, size_t limit);

// Whether `name` is a single component of a path, so that it cannot lead out of a folder. (A symbolic link with that
// name can: download caches consist of links, and a user who can write a link into the folder can also write the file.)
bool IsPlainFileName(std::string_view name);

}  // namespace tessera::base
