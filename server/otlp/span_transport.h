// SpanTransport sends messages to a receiver of the OpenTelemetry protocol, and SpanReply is its answer. Functions are
// pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace tessera::server {

struct SpanReply {
  int status = 0;                             // HTTP status; 0: there was no complete answer
  std::string error;                          // without an answer: why; names no URL and no header
  std::optional<absl::Duration> retry_after;  // of the header
  std::string body;                           // at most kMaxSpanReplyBytes
};

inline constexpr size_t kMaxSpanReplyBytes = 64 << 10;

class SpanTransport {
 public:
  virtual ~SpanTransport() = default;

  // Sends one message and waits for the answer, at most for `timeout` and until the deadline of HurryUntil.
  virtual SpanReply Post(const std::string& message, absl::Duration timeout) = 0;

  // Sets the steady time (base/time/steady_time.h) at which every current and later Post ends. Thread-safe.
  virtual void HurryUntil(absl::Duration deadline) = 0;
};

// Returns whether the same message may be accepted later, by the statuses that the protocol names.
bool MayRetry(const SpanReply& reply);

// Returns how many of the spans the receiver has refused although it accepted the message (partial success). An answer
// that is not readable means none.
int64_t RejectedSpans(absl::string_view body);

// Parses Retry-After: seconds or a date of HTTP. Nullopt for other texts; a date that has passed is zero.
std::optional<absl::Duration> ParseRetryAfter(absl::string_view text, absl::Time now);

}  // namespace tessera::server
