#include "server/trace/image_spans.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/files/sha256.h"
#include "server/trace/trace_context.h"

namespace tessera::server {
namespace {

constexpr size_t kTraceIdBytes = 16, kSpanIdBytes = 8;

std::string DerivedId(const std::string& text, size_t bytes) {
  return absl::BytesToHexString(base::Sha256Of(text).substr(0, bytes));
}

// Returns the context of the call that submitted the job. Its span id is empty if the trace begins with the job.
TraceContext ContextOf(const TracedImage& image, double sampling_ratio) {
  if (std::optional<TraceContext> call = ParseTraceParent(image.trace_parent)) return *std::move(call);
  TraceContext context = {.trace_id = DerivedId(absl::StrCat("trace of job ", image.job), kTraceIdBytes)};
  context.sampled = IsSampled(context.trace_id, sampling_ratio);
  return context;
}

std::string ImageSpanId(const TracedImage& image) {
  return DerivedId(absl::StrCat("span of image ", image.job, "/", image.index), kSpanIdBytes);
}

std::vector<SpanAttribute> IdsOf(const TracedImage& image) {
  return {{"tessera.job.id", image.job}, {"tessera.image.index", int64_t{image.index}}};
}

}  // namespace

bool ImageSpans::IsRecorded(const TracedImage& image) const {
  return ContextOf(image, options_.sampling_ratio).sampled;
}

void ImageSpans::AddStage(const TracedImage& image, ImageStageSpan stage) const {
  TraceContext context = ContextOf(image, options_.sampling_ratio);
  if (!context.sampled) return;
  ExportedSpan span = {.trace_id = std::move(context.trace_id),
                       .span_id = NewSpanId(),
                       .parent_id = ImageSpanId(image),
                       .name = std::move(stage.name),
                       .start = stage.start,
                       .end = std::max(stage.start, stage.end),
                       .attributes = IdsOf(image)};
  std::move(stage.attributes.begin(), stage.attributes.end(), std::back_inserter(span.attributes));
  sink_.Add(std::move(span));
}

void ImageSpans::AddImage(const TracedImage& image, const ImageFacts& facts, const std::string& outcome) const {
  TraceContext context = ContextOf(image, options_.sampling_ratio);
  if (!context.sampled) return;
  const absl::Time end = sink_.Now();
  ExportedSpan span = {.trace_id = std::move(context.trace_id),
                       .span_id = ImageSpanId(image),
                       .parent_id = std::move(context.span_id),
                       .name = "image",
                       .start = std::min(facts.created, end),  // the calendar may have been set since
                       .end = end,
                       .attributes = IdsOf(image),
                       .failed = outcome != "done" && outcome != "cancelled"};
  const SpanAttribute more[] = {{"tessera.model", facts.model},
                                {"tessera.image.width", int64_t{facts.width}},
                                {"tessera.image.height", int64_t{facts.height}},
                                {"tessera.steps", int64_t{facts.steps}},
                                {"tessera.outcome", outcome}};
  span.attributes.insert(span.attributes.end(), std::begin(more), std::end(more));
  if (!facts.group.empty()) {
    span.attributes.push_back({"tessera.group", facts.group});
    span.attributes.push_back({"tessera.layout", facts.layout});
  }
  if (options_.key_names && !facts.key.empty()) span.attributes.push_back({"tessera.key.name", facts.key});
  sink_.Add(std::move(span));
}

}  // namespace tessera::server
