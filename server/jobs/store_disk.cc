#include "server/jobs/store_disk.h"

#include <algorithm>
#include <random>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "base/files/sha256.h"
#include "base/macros/status_macros.h"
#include "server/jobs/sqlite.h"
#include "server/jobs/store_rules.h"

namespace tessera::server {
namespace {

constexpr size_t kCheckedAtOnce = 64 << 10;

StorageState StateAfter(const absl::Status& failure) {
  if (absl::IsDataLoss(failure)) return StorageState::kDamaged;
  return absl::IsResourceExhausted(failure) ? StorageState::kFull : StorageState::kFailing;
}

// Returns whether the bytes are those that were written. Reads all of them, a piece at a time.
absl::StatusOr<bool> IsIntact(const base::ByteSource& bytes, const StoredImage& image) {
  if (bytes.size() != image.bytes) return false;
  base::Sha256 digest;
  for (uint64_t read = 0; read < bytes.size();) {
    ASSIGN_OR_RETURN(const std::string piece, bytes.Read(read, kCheckedAtOnce));
    digest.Update(piece);
    read += piece.size();
  }
  return digest.Finish() == absl::BytesToHexString(image.digest);
}

}  // namespace

absl::StatusOr<bool> HoldsImages(ResultStore& results) {
  ASSIGN_OR_RETURN(const std::vector<std::string> names, results.List());
  return std::ranges::any_of(
      names, [](const std::string& name) { return name != kTrialFile && !absl::StrContains(name, kTemporaryMark); });
}

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

absl::Status StoreDisk::Write(const std::string& name, const std::string& bytes) { return WriteAll({{name, bytes}}); }

absl::Status StoreDisk::WriteAll(absl::Span<const ResultFile> files) {
  RETURN_IF_ERROR(CheckPlace());
  absl::Status written = results_.WriteAll(files);
  uint64_t largest = 0;
  for (const ResultFile& file : files) largest = std::max<uint64_t>(largest, file.bytes.size());
  if (!written.ok()) OnResultFailure(written, largest);
  return written;
}

void StoreDisk::OnResultFailure(const absl::Status& failure, uint64_t bytes) {
  health_.Fail(StateAfter(failure), failure, bytes);
}

absl::StatusOr<base::SharedBytes> StoreDisk::OpenImage(const JobRecord& job, const std::string& tenant,
                                                       const std::string& image, const base::SharedBytes& committed,
                                                       uint64_t limit) {
  if (job.tenant != tenant) return NoSuchImage();
  const auto task = std::ranges::find_if(
      job.tasks, [&](const TaskRecord& of) { return of.image.has_value() && of.image->id == image; });
  if (task == job.tasks.end()) return NoSuchImage();
  absl::StatusOr<base::SharedBytes> file = committed;
  if (committed == nullptr) file = results_.OpenFile(task->image->file, limit);
  const absl::StatusOr<bool> intact = file.ok() ? IsIntact(**file, *task->image) : absl::StatusOr<bool>(file.status());
  if (absl::IsNotFound(intact.status())) {
    // Only the folder may be missing, and may come back.
    RETURN_IF_ERROR(CheckPlace());
    return absl::DataLossError("the image's file is missing");
  }
  if (!intact.ok()) return intact.status();
  if (!*intact) return absl::DataLossError("the image's file is damaged: its digest is wrong");
  return file;
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
  std::mt19937 random;  // some disks need no space for zeros
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
