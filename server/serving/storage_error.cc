#include "server/serving/storage_error.h"

#include "absl/time/time.h"
#include "server/service/service_error.h"

namespace tessera {
namespace {

constexpr absl::Duration kRetry = absl::Seconds(5);

}  // namespace

absl::Status StorageErrorForCaller(const absl::Status& status) {
  const bool full = status.code() == absl::StatusCode::kResourceExhausted;
  if (!full && status.code() != absl::StatusCode::kUnavailable) return status;
  return WithRetryAfter(
      WithErrorCode(absl::UnavailableError(status.message()), full ? "storage_full" : "storage_unavailable"), kRetry);
}

}  // namespace tessera
