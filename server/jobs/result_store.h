// ResultStore holds the finished images, one file each. It is an interface, so that another store can replace a folder,
// and tests can simulate a failing disk.
//
// A name is relative and made only by the job store ("0f/123-2"), never by callers. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/files/byte_source.h"

namespace tessera::server {

struct ResultFile {
  std::string name;
  const std::string& bytes;
};

class ResultStore {
 public:
  virtual ~ResultStore() = default;

  // Creates what the store needs; called once before anything else.
  virtual absl::Status Open() { return absl::OkStatus(); }

  // UNAVAILABLE if the place is no longer the one that Open found.
  virtual absl::Status CheckPlace() const { return absl::OkStatus(); }

  // Returns after the whole file is durable under its name: it is written under a temporary name, synced and renamed,
  // and the folder is synced. After an error the file is either absent or complete. RESOURCE_EXHAUSTED: the disk is
  // full. UNAVAILABLE: any other write error.
  virtual absl::Status Write(const std::string& name, const std::string& bytes) = 0;

  // Writes each of the files, possibly with fewer syncs. After an error some of them may exist.
  virtual absl::Status WriteAll(absl::Span<const ResultFile> files) {
    for (const ResultFile& file : files) {
      if (absl::Status written = Write(file.name, file.bytes); !written.ok()) return written;
    }
    return absl::OkStatus();
  }

  // Opens the current file for reading in pieces. A later read returns DATA_LOSS if the file was changed since, and
  // NOT_FOUND if it was removed and the store does not hold it open. The result must not outlive the store. NOT_FOUND;
  // RESOURCE_EXHAUSTED: the file has more than `limit` bytes; UNAVAILABLE: any other read error.
  virtual absl::StatusOr<base::SharedBytes> OpenFile(const std::string& name, uint64_t limit) = 0;

  // A missing file is no error.
  virtual absl::Status Remove(const std::string& name) = 0;

  // Returns every file in any order, including left-over temporary ones.
  virtual absl::StatusOr<std::vector<std::string>> List() = 0;
};

}  // namespace tessera::server
