#include "server/trace/call_spans.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/calls/call_log.h"
#include "server/trace/trace_context.h"

namespace tessera::server {
namespace {

// As the semantic conventions of OpenTelemetry say, an error of the caller does not make a server span fail.
bool IsServerError(const CallRecord& call) {
  if (call.protocol != "grpc") return call.status >= 500;
  switch (static_cast<absl::StatusCode>(call.status)) {
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kInternal:
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDataLoss:
      return true;
    default:
      return false;
  }
}

void DescribeHttp(const CallRecord& call, ExportedSpan& span) {
  span.name = call.route.empty() ? call.method : absl::StrCat(call.method, " ", call.route);
  span.attributes = {{"http.request.method", call.method},
                     {"http.request.body.size", static_cast<int64_t>(call.request_bytes)},
                     {"http.response.body.size", static_cast<int64_t>(call.response_bytes)}};
  if (!call.route.empty()) span.attributes.push_back({"http.route", call.route});
  if (call.status != 0) span.attributes.push_back({"http.response.status_code", int64_t{call.status}});
}

// The route is "/SERVICE/METHOD".
void DescribeGrpc(const CallRecord& call, ExportedSpan& span) {
  span.name = call.route.substr(call.route.find_first_not_of('/'));
  const std::pair<std::string, std::string> parts = absl::StrSplit(span.name, absl::MaxSplits('/', 1));
  span.attributes = {{"rpc.system", std::string("grpc")},
                     {"rpc.service", parts.first},
                     {"rpc.method", parts.second},
                     {"rpc.grpc.status_code", int64_t{call.status}}};
}

}  // namespace

void CallSpans::Begin(CallRecord& call) const {
  TraceContext context = {.span_id = NewSpanId()};
  if (const std::optional<TraceContext> caller = ParseTraceParent(call.trace_parent); caller.has_value()) {
    context.trace_id = caller->trace_id;
    context.sampled = caller->sampled;
    call.parent_span = caller->span_id;
  } else {
    context.trace_id = NewTraceId();
    context.sampled = IsSampled(context.trace_id, options_.sampling_ratio);
  }
  call.trace_parent = TraceParentText(context);
}

void CallSpans::End(const CallRecord& call) const {
  const std::optional<TraceContext> context = ParseTraceParent(call.trace_parent);
  if (!context.has_value() || !context->sampled || IsCheck(call)) return;
  const absl::Time end = sink_.Now();
  ExportedSpan span = {.trace_id = context->trace_id,
                       .span_id = context->span_id,
                       .parent_id = call.parent_span,
                       .kind = SpanKind::kServer,
                       .start = end - call.duration,
                       .end = end,
                       .failed = IsServerError(call)};
  call.protocol == "grpc" ? DescribeGrpc(call, span) : DescribeHttp(call, span);
  span.attributes.push_back({"tessera.request.id", call.request_id});
  if (!call.job.empty()) span.attributes.push_back({"tessera.job.id", call.job});
  if (!call.error_code.empty()) span.attributes.push_back({"error.type", call.error_code});
  if (options_.key_names && !call.tenant.empty()) span.attributes.push_back({"tessera.key.name", call.tenant});
  sink_.Add(std::move(span));
}

}  // namespace tessera::server
