// The finished images as files of one folder, spread over 256 folders in it, which are made when they are needed. Their
// owner alone can read them.
//
// A file that is being read keeps a descriptor only up to a bound, so that slow readers cannot use up those of the
// process; beyond it, the file is opened for every piece.
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

// Of a write whose name the program itself has made: whatever keeps it from being done is the disk's doing.
// RESOURCE_EXHAUSTED stays, all else is UNAVAILABLE.
absl::Status AsDiskFailure(const absl::Status& status);

class DiskResultStore final : public ResultStore {
 public:
  // `highest_descriptor`: the highest number that a file which is being read may keep, asked for each; null: any.
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
