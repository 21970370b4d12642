#include "server/calls/call_log.h"

#include "absl/status/status.h"

namespace tessera::server {
namespace {

bool IsDefect(const CallRecord& call) {
  if (call.protocol != "grpc") return call.status == 500;
  const auto code = static_cast<absl::StatusCode>(call.status);
  return code == absl::StatusCode::kInternal || code == absl::StatusCode::kUnknown ||
         code == absl::StatusCode::kDataLoss;
}

bool IsUnavailable(const CallRecord& call) {
  if (call.protocol != "grpc") return call.status > 500;
  const auto code = static_cast<absl::StatusCode>(call.status);
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kDeadlineExceeded;
}

}  // namespace

bool IsCheck(const CallRecord& call) {
  for (const char* route : {"/livez", "/readyz", "/health", "/metrics", "/probe"}) {
    if (call.route == route) return true;
  }
  return false;
}

base::LogLevel CallLog::LevelOf(const CallRecord& call) {
  if (IsCheck(call)) {
    const std::lock_guard lock(mutex_);
    const auto [last, first] = checks_.try_emplace({call.protocol, call.route}, 200);
    if (std::exchange(last->second, call.status) == call.status) return base::LogLevel::kDebug;
  }
  if (IsDefect(call)) return base::LogLevel::kError;
  return IsUnavailable(call) ? base::LogLevel::kWarning : base::LogLevel::kInfo;
}

base::LogLine CallLog::LineOf(const CallRecord& call) {
  base::LogLine line(LevelOf(call), "",
                     {{"protocol", call.protocol},
                      {"request_id", call.request_id},
                      {"method", call.method},
                      {"route", call.route},
                      {"status", call.status},
                      {"error", call.error_code},
                      {"tenant", call.tenant},
                      {"peer", call.peer},
                      {"job", call.job},
                      {"traceparent", call.trace_parent},
                      {"seconds", absl::ToDoubleSeconds(call.duration)},
                      {"request_bytes", call.request_bytes},
                      {"response_bytes", call.response_bytes}});
  line.event = "call";
  return line;
}

}  // namespace tessera::server
