#include "server/calls/call_ids.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_split.h"
#include "base/text/random_bytes.h"

namespace tessera::server {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
constexpr size_t kTraceIdAt = 3, kTraceIdDigits = 32;

bool IsLowerHex(absl::string_view text, size_t digits) {
  return text.size() == digits &&
         std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}

bool IsZero(absl::string_view text) { return text.find_first_not_of('0') == absl::string_view::npos; }

}  // namespace

std::string RequestIdFrom(absl::string_view sent) {
  const bool valid = !sent.empty() && sent.size() <= kMaxRequestIdBytes &&
                     std::all_of(sent.begin(), sent.end(), [](char c) { return c > ' ' && c <= '~'; });
  return valid ? std::string(sent) : base::RandomId("req_");
}

std::string TraceParentFrom(absl::string_view sent) {
  const std::vector<std::string> parts = absl::StrSplit(sent, '-');
  const bool valid = parts.size() == 4 && parts[0] == "00" && IsLowerHex(parts[1], kTraceIdDigits) &&
                     !IsZero(parts[1]) && IsLowerHex(parts[2], 16) && !IsZero(parts[2]) && IsLowerHex(parts[3], 2);
  return valid ? std::string(sent) : "";
}

std::string TraceIdOf(absl::string_view trace_parent) {
  return TraceParentFrom(trace_parent).empty() ? "" : std::string(trace_parent.substr(kTraceIdAt, kTraceIdDigits));
}

}  // namespace tessera::server
