// RecordFile is a file that grows by whole records: after an error, such as a full disk, it contains no part of the
// record.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/files/file_descriptor.h"

namespace tessera::control {

// Movable; one thread at a time.
class RecordFile {
 public:
  // Opens the file for appending, and creates it if it does not exist.
  static absl::StatusOr<RecordFile> Open(const std::string& path);

  const std::string& path() const { return path_; }

  // Appends the bytes. ResourceExhausted for a full disk, otherwise Unavailable; the message names the path. The file
  // can still be used after an error.
  absl::Status Append(std::string_view record);

 private:
  RecordFile(base::FileDescriptor file, std::string path, int64_t bytes)
      : file_(std::move(file)), path_(std::move(path)), bytes_(bytes) {}

  base::FileDescriptor file_;
  std::string path_;
  int64_t bytes_;  // in complete records
};

}  // namespace tessera::control
