// The ids that a caller may give its call in HTTP headers and gRPC metadata. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tessera::server {

// Returns the x-request-id that was sent if it is 1 to 128 visible ASCII characters; otherwise a new one.
std::string RequestIdFrom(absl::string_view sent);

// Returns the traceparent that was sent if it is well-formed (W3C Trace Context, version 00); otherwise an empty text.
std::string TraceParentFrom(absl::string_view sent);

// Returns the trace-id of a traceparent: the part that all services of a trace share. Empty if it is not well-formed.
std::string TraceIdOf(absl::string_view trace_parent);

}  // namespace tessera::server
