// CallSpans makes one server span for each call over HTTP or gRPC. Thread-safe.
//
// The call's span continues the caller's trace, if its traceparent is valid, and otherwise begins one. A job that the
// call submits stores the context of the call's span, so that the spans of its images belong to it, also after a
// restart.
#pragma once

#include "server/calls/call_record.h"
#include "server/trace/exported_span.h"

namespace tessera::server {

struct SpanOptions {
  double sampling_ratio = 1;  // of the traces that begin here, 0 … 1; the caller decides about the others
  bool key_names = false;     // whether spans have the names of API keys
};

class CallSpans {
 public:
  // `sink` outlives the object.
  CallSpans(SpanSink& sink, SpanOptions options) : sink_(sink), options_(options) {}

  // Replaces the caller's traceparent in the record by the context of the call's span.
  void Begin(CallRecord& call) const;

  // Exports the span of a call that has begun and has now been answered. Health checks and scrapes have none.
  void End(const CallRecord& call) const;

 private:
  SpanSink& sink_;
  const SpanOptions options_;
};

}  // namespace tessera::server
