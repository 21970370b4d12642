// ExportedSpan is one completed operation of a distributed trace, and SpanSink is where such spans go. Plain values.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"

namespace tessera::server {

struct SpanAttribute {
  std::string name;
  std::variant<std::string, int64_t, double, bool> value;
};

// The numbers of OTLP.
enum class SpanKind : uint8_t { kInternal = 1, kServer = 2 };

// The ids are lower-case hexadecimal: 32 digits of a trace, 16 of a span. It contains no prompt and no image.
struct ExportedSpan {
  std::string trace_id;
  std::string span_id;
  std::string parent_id;  // empty: the trace begins with this span
  std::string name;
  SpanKind kind = SpanKind::kInternal;
  absl::Time start;
  absl::Time end;
  std::vector<SpanAttribute> attributes;
  bool failed = false;
};

// Thread-safe.
class SpanSink {
 public:
  virtual ~SpanSink() = default;

  // Never waits for a receiver; may drop the span.
  virtual void Add(ExportedSpan span) = 0;

  // Returns the calendar time at the start plus elapsed time; it never jumps.
  virtual absl::Time Now() const = 0;
};

}  // namespace tessera::server
