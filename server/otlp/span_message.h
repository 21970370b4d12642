// Writes spans in the JSON encoding of the OpenTelemetry protocol (OTLP 1.x, ExportTraceServiceRequest). Pure.
#pragma once

#include <string>

#include "absl/types/span.h"
#include "server/trace/exported_span.h"

namespace tessera::server {

// What all spans of a process have in common.
struct SpanResource {
  std::string service_name;
  std::string service_version;
  std::string instance_id;  // unique to this process
};

// Trace and span ids are hexadecimal, enums are numbers, and 64-bit integers are decimal strings, as the protocol says.
// Bytes that are not UTF-8 are replaced.
std::string SpanMessage(const SpanResource& resource, absl::Span<const ExportedSpan> spans);

}  // namespace tessera::server
