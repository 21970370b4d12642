#include "server/jobs/store_disk.h"

#include <random>
#include <utility>

#include "base/status_macros.h"
#include "server/jobs/sqlite.h"

namespace tessera::server {
namespace {

StorageState StateAfter(const absl::Status& failure) {
  if (absl::IsDataLoss(failure)) return StorageState::kDamaged;
  return absl::IsResourceExhausted(failure) ? StorageState::kFull : StorageState::kFailing;
}

}  // namespace

absl::Status StoreDisk::CheckPlace() {
  absl::Status place = database_.Check();
  place.Update(results_.CheckPlace());
  if (!place.ok()) health_.Fail(StorageState::kMoved, place);
  return place;
}

void StoreDisk::OnDatabaseFailure(const absl::Status& failure) {
  if (!IsStorageFailure(failure) || absl::IsInternal(failure)) return;
  health_.Fail(StateAfter(failure), failure);
}

absl::Status StoreDisk::Write(const std::string& name, const std::string& bytes) {
  RETURN_IF_ERROR(CheckPlace());
  absl::Status written = results_.Write(name, bytes);
  if (!written.ok()) health_.Fail(StateAfter(written), written, bytes.size());
  return written;
}

void StoreDisk::Remove(const std::string& name) {
  if (results_.Remove(name).ok()) return;
  const std::lock_guard lock(mutex_);
  left_over_.push_back(name);
}

absl::Status StoreDisk::TryRoom() {
  const uint64_t needed = health_.needed_bytes();
  if (needed == 0) return absl::OkStatus();
  std::string bytes(needed, '\0');
  std::mt19937 random;  // of zeros some disks need no room
  for (char& byte : bytes) byte = static_cast<char>(random());
  absl::Status written = Write(kTrialFile, bytes);
  Remove(kTrialFile);
  return written;
}

absl::StatusOr<std::vector<std::string>> StoreDisk::TakeCandidates() {
  if (!has_listed_.exchange(true)) {
    absl::StatusOr<std::vector<std::string>> files = results_.List();
    if (!files.ok()) has_listed_ = false;
    return files;
  }
  const std::lock_guard lock(mutex_);
  return std::exchange(left_over_, {});
}

}  // namespace tessera::server
