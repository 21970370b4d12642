// ImageSpans makes the spans of the images of jobs: one for the whole image, and inside it one for each stage.
//
// They belong to the trace that is stored with the job, as children of the call that submitted it; a job that was
// stored without one has a trace of its id. The id of an image's span depends on the job alone, so that stages of
// several processes, for example before and after a restart, have the same parent. Thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "server/trace/call_spans.h"
#include "server/trace/exported_span.h"
#include "server/trace/trace_file.h"

namespace tessera::server {

// What a span says of an image. Names and numbers, never what the caller asked to be drawn.
struct ImageFacts {
  std::string model;
  int32_t width = 0;
  int32_t height = 0;
  int32_t steps = 0;
  std::string key;     // name of the API key
  std::string group;   // empty: no group has begun it
  std::string layout;  // of this group
  absl::Time created;
};

struct ImageStageSpan {
  std::string name;
  absl::Time start;
  absl::Time end;
  std::vector<SpanAttribute> attributes;
};

class ImageSpans {
 public:
  // `sink` outlives the object.
  ImageSpans(SpanSink& sink, SpanOptions options) : sink_(sink), options_(options) {}

  absl::Time Now() const { return sink_.Now(); }

  // Returns whether the image's trace is recorded; the functions below do nothing otherwise.
  bool IsRecorded(const TracedImage& image) const;

  void AddStage(const TracedImage& image, ImageStageSpan stage) const;
  // `outcome` is "done", "cancelled", or any other word for a failure.
  void AddImage(const TracedImage& image, const ImageFacts& facts, const std::string& outcome) const;

 private:
  SpanSink& sink_;
  const SpanOptions options_;
};

}  // namespace tessera::server
