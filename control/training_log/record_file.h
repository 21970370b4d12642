// A file that grows by whole records: after an error, as of a full disk, nothing of the record is left in it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/file_descriptor.h"

namespace tessera::control {

// Movable; one thread at a time.
class RecordFile {
 public:
  // Opens the file to add to it; it is made if need be.
  static absl::StatusOr<RecordFile> Open(const std::string& path);

  const std::string& path() const { return path_; }

  // Adds the bytes at the end. ResourceExhausted for a full disk, Unavailable for whatever else; the message names the
  // path. The file may be used further then.
  absl::Status Append(std::string_view record);

 private:
  RecordFile(base::FileDescriptor file, std::string path, int64_t bytes)
      : file_(std::move(file)), path_(std::move(path)), bytes_(bytes) {}

  base::FileDescriptor file_;
  std::string path_;
  int64_t bytes_;  // of complete records
};

}  // namespace tessera::control
