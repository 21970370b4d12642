#include "server/jobs/storage_health.h"

#include <algorithm>

namespace tessera::server {
namespace {

// A disk with less free space than this counts as full, whatever the log of the database still takes.
constexpr uint64_t kLeastRoom = 64 << 10;

}  // namespace

void StorageHealth::Fail(StorageState state, const absl::Status& failure, uint64_t result_bytes) {
  const std::lock_guard lock(mutex_);
  ++failures_;
  needed_bytes_ = std::max({needed_bytes_, result_bytes, state == StorageState::kFull ? kLeastRoom : 0});
  if (state <= state_) return;
  if (state_ == StorageState::kOk) begun_ = clock_.Elapsed();
  state_ = state;
  failure_ = failure;
  if (on_change_) on_change_(TroubleNow());
}

void StorageHealth::Recover(int64_t failures) {
  const std::lock_guard lock(mutex_);
  if (state_ == StorageState::kOk || state_ == StorageState::kDamaged || failures != failures_) return;
  StorageTrouble ended = TroubleNow();
  state_ = ended.state = StorageState::kOk;
  failure_ = ended.failure = absl::OkStatus();
  needed_bytes_ = 0;
  if (on_change_) on_change_(ended);
}

StorageTrouble StorageHealth::TroubleNow() const {
  if (state_ == StorageState::kOk) return {};
  return {.state = state_, .failure = failure_, .duration = clock_.Elapsed() - begun_};
}

StorageTrouble StorageHealth::trouble() const {
  const std::lock_guard lock(mutex_);
  return TroubleNow();
}

int64_t StorageHealth::failures() const {
  const std::lock_guard lock(mutex_);
  return failures_;
}

uint64_t StorageHealth::needed_bytes() const {
  const std::lock_guard lock(mutex_);
  return needed_bytes_;
}

}  // namespace tessera::server
