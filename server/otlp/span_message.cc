#include "server/otlp/span_message.h"

#include <boost/json.hpp>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/json/plain_json.h"
#include "base/text/utf8.h"

namespace tessera::server {
namespace {

constexpr int kStatusError = 2;
// Bit 0 of the flags of W3C Trace Context: the trace is recorded.
constexpr int kFlagsSampled = 1;

struct ValueWriter {
  boost::json::object operator()(const std::string& text) const {
    return {{"stringValue", base::ReplaceInvalidUtf8(text)}};
  }
  boost::json::object operator()(int64_t number) const { return {{"intValue", absl::StrCat(number)}}; }
  boost::json::object operator()(double number) const { return {{"doubleValue", number}}; }
  boost::json::object operator()(bool value) const { return {{"boolValue", value}}; }
};

boost::json::array AttributesJson(const std::vector<SpanAttribute>& attributes) {
  boost::json::array list;
  for (const SpanAttribute& attribute : attributes) {
    list.push_back(boost::json::object{{"key", attribute.name}, {"value", std::visit(ValueWriter(), attribute.value)}});
  }
  return list;
}

std::string Nanoseconds(absl::Time time) { return absl::StrCat(absl::ToUnixNanos(time)); }

boost::json::object SpanJson(const ExportedSpan& span) {
  boost::json::object json = {{"traceId", span.trace_id},
                              {"spanId", span.span_id},
                              {"flags", kFlagsSampled},
                              {"name", base::ReplaceInvalidUtf8(span.name)},
                              {"kind", static_cast<int>(span.kind)},
                              {"startTimeUnixNano", Nanoseconds(span.start)},
                              {"endTimeUnixNano", Nanoseconds(span.end)},
                              {"attributes", AttributesJson(span.attributes)}};
  if (!span.parent_id.empty()) json["parentSpanId"] = span.parent_id;
  if (span.failed) json["status"] = boost::json::object{{"code", kStatusError}};
  return json;
}

}  // namespace

std::string SpanMessage(const SpanResource& resource, absl::Span<const ExportedSpan> spans) {
  boost::json::array list;
  for (const ExportedSpan& span : spans) list.push_back(SpanJson(span));
  boost::json::object scope = {{"name", "tessera"}, {"version", resource.service_version}};
  boost::json::object scope_spans = {{"scope", std::move(scope)}, {"spans", std::move(list)}};
  boost::json::object resource_spans = {
      {"resource",
       boost::json::object{{"attributes", AttributesJson({{"service.name", resource.service_name},
                                                          {"service.version", resource.service_version},
                                                          {"service.instance.id", resource.instance_id}})}}},
      {"scopeSpans", boost::json::array{std::move(scope_spans)}}};
  return base::PlainJson(boost::json::object{{"resourceSpans", boost::json::array{std::move(resource_spans)}}});
}

}  // namespace tessera::server
