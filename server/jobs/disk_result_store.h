// DiskResultStore keeps the finished images as files of one folder, spread over 256 subfolders that are created on
// demand. Only the owner of the files can read them.
//
// An open image keeps a file descriptor only up to a bound, so that slow readers cannot use up the process's
// descriptors; beyond the bound, the file is opened for every read.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/jobs/result_store.h"
#include "server/jobs/storage_place.h"

namespace tessera::server {

// Converts the error of a write under a name that the program has made, so that only the disk can be the cause:
// RESOURCE_EXHAUSTED stays, everything else becomes UNAVAILABLE.
absl::Status AsDiskFailure(const absl::Status& status);

class DiskResultStore final : public ResultStore {
 public:
  // `highest_descriptor` returns the highest descriptor number that an open image may keep; it is called for each
  // image. Null: any.
  explicit DiskResultStore(std::string folder, std::function<int()> highest_descriptor = nullptr);

  absl::Status Open() override;
  absl::Status CheckPlace() const override { return place_.Check(); }
  absl::Status Write(const std::string& name, const std::string& bytes) override;
  absl::Status WriteAll(absl::Span<const ResultFile> files) override;
  absl::StatusOr<base::SharedBytes> OpenFile(const std::string& name, uint64_t limit) override;
  absl::Status Remove(const std::string& name) override;
  absl::StatusOr<std::vector<std::string>> List() override;

 private:
  const std::string folder_;
  const std::function<int()> highest_descriptor_;
  StoragePlace place_;
};

}  // namespace tessera::server
