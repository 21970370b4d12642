#include "server/trace/trace_context.h"

#include <cmath>
#include <cstdint>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/text/random_bytes.h"
#include "server/calls/call_ids.h"

namespace tessera::server {
namespace {

constexpr uint64_t kSampledFlag = 1;
// W3C Trace Context asks for at least 56 random bits at the end of a trace id; a double holds 52 of them exactly.
constexpr int kRandomBits = 52;
constexpr size_t kRandomDigits = kRandomBits / 4;

uint64_t HexNumber(absl::string_view digits) {
  uint64_t number = 0;
  return absl::SimpleHexAtoi(digits, &number) ? number : 0;
}

// An id of zeros alone is invalid.
std::string NewId(size_t bytes) {
  while (true) {
    std::string id = absl::BytesToHexString(base::RandomBytes(bytes));
    if (id.find_first_not_of('0') != std::string::npos) return id;
  }
}

}  // namespace

std::optional<TraceContext> ParseTraceParent(absl::string_view trace_parent) {
  if (TraceParentFrom(trace_parent).empty()) return std::nullopt;
  const std::vector<std::string> parts = absl::StrSplit(trace_parent, '-');
  return TraceContext{
      .trace_id = parts[1], .span_id = parts[2], .sampled = (HexNumber(parts[3]) & kSampledFlag) == kSampledFlag};
}

std::string TraceParentText(const TraceContext& context) {
  return absl::StrCat("00-", context.trace_id, "-", context.span_id, context.sampled ? "-01" : "-00");
}

bool IsSampled(absl::string_view trace_id, double ratio) {
  if (trace_id.size() < kRandomDigits) return false;
  const uint64_t number = HexNumber(trace_id.substr(trace_id.size() - kRandomDigits));
  return static_cast<double>(number) < std::ldexp(ratio, kRandomBits);
}

std::string NewTraceId() { return NewId(16); }

std::string NewSpanId() { return NewId(8); }

}  // namespace tessera::server
