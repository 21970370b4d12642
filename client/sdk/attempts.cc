#include "client/sdk/attempts.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/text/random_bytes.h"
#include "client/sdk/http_transport.h"

namespace tessera::client {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(100);
constexpr absl::Duration kLongestPause = absl::Seconds(5);

// Keys of the status payloads.
constexpr char kField[] = "tessera-field";
constexpr char kErrorCode[] = "tessera-error-code";
constexpr char kRetryAfter[] = "retry-after-ms";

std::optional<std::string> PayloadOf(const absl::Status& status, const char* name) {
  const absl::optional<absl::Cord> payload = status.GetPayload(name);
  if (!payload.has_value()) return std::nullopt;
  return std::string(*payload);
}

// The pause is random, so that callers that failed together do not retry together.
absl::Duration BackOff(int failures) {
  const absl::Duration longest = std::min(kFirstPause * (int64_t{1} << std::min(failures, 10)), kLongestPause);
  const auto random = static_cast<unsigned char>(base::RandomBytes(1)[0]);
  return longest * (0.5 + random / 512.0);
}

bool MayGetThroughLater(const absl::Status& failed) {
  return failed.code() == absl::StatusCode::kUnavailable ||
         (failed.code() == absl::StatusCode::kResourceExhausted && RefusalOf(failed).retry_after.has_value());
}

}  // namespace

absl::Status WithRefusal(absl::Status status, const Refusal& refusal) {
  if (!refusal.field.empty()) status.SetPayload(kField, absl::Cord(refusal.field));
  if (!refusal.code.empty()) status.SetPayload(kErrorCode, absl::Cord(refusal.code));
  if (refusal.retry_after.has_value()) {
    status.SetPayload(kRetryAfter, absl::Cord(absl::StrCat(absl::ToInt64Milliseconds(*refusal.retry_after))));
  }
  return status;
}

absl::Status Attempts::PauseAfter(const absl::Status& failed) {
  if (stop_.stop_requested()) return absl::CancelledError("the caller has ended the call");
  retries_refusals_ = retries_refusals_ || WasLost(failed);
  if (!retries_refusals_ || !MayGetThroughLater(failed) || failures_ >= retries_) return failed;
  const absl::Duration pause =
      std::max(BackOff(failures_++), RefusalOf(failed).retry_after.value_or(absl::ZeroDuration()));
  // Fail at once if the pause would exceed the rest of the call's time.
  if (base::SteadyNow() + pause >= deadline_) return failed;
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  stopped.wait_for(lock, stop_, absl::ToChronoNanoseconds(pause), [] { return false; });
  return stop_.stop_requested() ? absl::CancelledError("the caller has ended the call") : absl::OkStatus();
}

}  // namespace tessera::client

tessera::Refusal tessera::RefusalOf(const absl::Status& status) {
  Refusal refusal = {.field = client::PayloadOf(status, client::kField).value_or(""),
                     .code = client::PayloadOf(status, client::kErrorCode).value_or("")};
  int64_t milliseconds = 0;
  if (absl::SimpleAtoi(client::PayloadOf(status, client::kRetryAfter).value_or(""), &milliseconds) &&
      milliseconds >= 0) {
    refusal.retry_after = absl::Milliseconds(milliseconds);
  }
  return refusal;
}
