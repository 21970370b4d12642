// The finished images, one file each: an interface, so that another store can take the place of a folder, and a test
// that of a disk that breaks.
//
// A name is relative and made by the job store alone ("0f/123-2"); callers never choose one. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/byte_source.h"

namespace tessera::server {

struct ResultFile {
  std::string name;
  const std::string& bytes;
};

class ResultStore {
 public:
  virtual ~ResultStore() = default;

  // Makes what is needed; called once before anything else.
  virtual absl::Status Open() { return absl::OkStatus(); }

  // UNAVAILABLE once the place is not the one that Open found.
  virtual absl::Status CheckPlace() const { return absl::OkStatus(); }

  // Returns after the whole file is durable under its name: written beside it, synced, moved, the folder synced. On an
  // error there is either no such file or a complete one. RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE for whatever
  // else keeps it from being written.
  virtual absl::Status Write(const std::string& name, const std::string& bytes) = 0;

  // Write of each, which may take fewer syncs together. On an error some of them may be there.
  virtual absl::Status WriteAll(absl::Span<const ResultFile> files) {
    for (const ResultFile& file : files) {
      if (absl::Status written = Write(file.name, file.bytes); !written.ok()) return written;
    }
    return absl::OkStatus();
  }

  // The file as it is now, to be read piece by piece: a read of one that was changed since is DATA_LOSS, of one that
  // was removed NOT_FOUND where the store does not hold it open. Must not outlive the store. NOT_FOUND;
  // RESOURCE_EXHAUSTED for a file of more than `limit` bytes; UNAVAILABLE for whatever else keeps it from being read.
  virtual absl::StatusOr<base::SharedBytes> OpenFile(const std::string& name, uint64_t limit) = 0;

  // A file that is not there is no error.
  virtual absl::Status Remove(const std::string& name) = 0;

  // Every file, left-over temporary ones included, in any order.
  virtual absl::StatusOr<std::vector<std::string>> List() = 0;
};

}  // namespace tessera::server
