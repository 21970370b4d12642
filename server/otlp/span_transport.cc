#include "server/otlp/span_transport.h"

#include <algorithm>
#include <limits>

#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "base/json/json.h"

namespace tessera::server {
namespace {

constexpr char kHttpDate[] = "%a, %d %b %Y %H:%M:%S GMT";

}  // namespace

bool MayRetry(const SpanReply& reply) {
  return reply.status == 0 || reply.status == 429 || reply.status == 502 || reply.status == 503 || reply.status == 504;
}

int64_t RejectedSpans(absl::string_view body) {
  const absl::StatusOr<base::Json> json =
      base::ParseJson(std::string_view(body.data(), body.size()), "the answer", kMaxSpanReplyBytes);
  if (!json.ok()) return 0;
  const base::Json* partial = json->Find("partialSuccess");
  const base::Json* rejected = partial == nullptr ? nullptr : partial->Find("rejectedSpans");
  if (rejected == nullptr) return 0;
  int64_t count = rejected->AsInt().value_or(0);
  if (const std::string* text = rejected->AsString(); text != nullptr && !absl::SimpleAtoi(*text, &count)) return 0;
  return std::max<int64_t>(count, 0);
}

std::optional<absl::Duration> ParseRetryAfter(absl::string_view text, absl::Time now) {
  text = absl::StripAsciiWhitespace(text);
  uint32_t seconds = 0;
  if (absl::SimpleAtoi(text, &seconds)) return absl::Seconds(seconds);
  absl::Time date;
  std::string error;
  if (!absl::ParseTime(kHttpDate, text, &date, &error)) return std::nullopt;
  return std::max(date - now, absl::ZeroDuration());
}

}  // namespace tessera::server
