// The ids that a caller may give its call, as headers of HTTP and metadata of gRPC. Pure functions.
#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace tessera::server {

// What was sent as x-request-id if it is 1 to 128 visible ASCII characters; else a new one.
std::string RequestIdFrom(absl::string_view sent);

// What was sent as traceparent if it is well-formed (W3C Trace Context, version 00); else empty.
std::string TraceParentFrom(absl::string_view sent);

// The trace-id of a traceparent: the part that all services on the way share. Empty for one that is not well-formed.
std::string TraceIdOf(absl::string_view trace_parent);

}  // namespace tessera::server
