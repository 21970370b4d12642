// TraceContext identifies a span and the trace that it belongs to (W3C Trace Context, version 00). Pure functions,
// except for those that make ids.
#pragma once

#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace tessera::server {

struct TraceContext {
  std::string trace_id;  // 32 lower-case hexadecimal digits
  std::string span_id;   // 16 lower-case hexadecimal digits
  bool sampled = false;  // whether the trace is recorded

  bool operator==(const TraceContext&) const = default;
};

// Returns the context of a traceparent; nullopt if it is not well-formed.
std::optional<TraceContext> ParseTraceParent(absl::string_view trace_parent);

// Returns the traceparent that names this context.
std::string TraceParentText(const TraceContext& context);

// Returns whether a trace that begins here is recorded. Depends on the id alone, so that every server that begins or
// continues the trace decides alike. `ratio` is 0 … 1.
bool IsSampled(absl::string_view trace_id, double ratio);

std::string NewTraceId();
std::string NewSpanId();

}  // namespace tessera::server
