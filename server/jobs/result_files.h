// The finished images, one file each, behind a seam so that tests can break the disk.
//
// A name is relative and made by the job store alone ("0f/123-2"); callers never choose one. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/storage_place.h"

namespace tessera {

class ResultFiles {
 public:
  virtual ~ResultFiles() = default;

  // Makes what is needed; called once before anything else.
  virtual absl::Status Open() { return absl::OkStatus(); }

  // UNAVAILABLE once the place is not the one that Open found.
  virtual absl::Status CheckPlace() const { return absl::OkStatus(); }

  // Returns after the whole file is durable under its name: written beside it, synced, moved, the folder synced. On an
  // error there is either no such file or a complete one. RESOURCE_EXHAUSTED for a full disk, UNAVAILABLE for whatever
  // else keeps it from being written.
  virtual absl::Status Write(const std::string& name, const std::string& bytes) = 0;

  // NOT_FOUND; RESOURCE_EXHAUSTED for a file of more than `limit` bytes.
  virtual absl::StatusOr<std::string> Read(const std::string& name, uint64_t limit) = 0;

  // A file that is not there is no error.
  virtual absl::Status Remove(const std::string& name) = 0;

  // Every file, left-over temporary ones included, in any order.
  virtual absl::StatusOr<std::vector<std::string>> List() = 0;
};

// Files in `folder`, spread over 256 folders in it, which are made when they are needed. Their owner alone can read
// them.
class DiskResultFiles final : public ResultFiles {
 public:
  explicit DiskResultFiles(std::string folder);

  absl::Status Open() override;
  absl::Status CheckPlace() const override { return place_.Check(); }
  absl::Status Write(const std::string& name, const std::string& bytes) override;
  absl::StatusOr<std::string> Read(const std::string& name, uint64_t limit) override;
  absl::Status Remove(const std::string& name) override;
  absl::StatusOr<std::vector<std::string>> List() override;

 private:
  const std::string folder_;
  StoragePlace place_;
};

}  // namespace tessera
