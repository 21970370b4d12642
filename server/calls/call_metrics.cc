#include "server/calls/call_metrics.h"

#include <prometheus/counter.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

namespace tessera::server {
namespace {

// Bucket bounds in seconds: answers from memory take under a millisecond, images take minutes.
const prometheus::Histogram::BucketBoundaries& SecondsBuckets() {
  static const auto* buckets =
      new prometheus::Histogram::BucketBoundaries{0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300};
  return *buckets;
}

}  // namespace

struct CallMetrics::Families {
  prometheus::Registry registry;
  prometheus::Family<prometheus::Counter>& requests =
      prometheus::BuildCounter()
          .Name("tessera_requests_total")
          .Help("Answered requests, with the status of their protocol; HTTP 0: the client disconnected.")
          .Register(registry);
  prometheus::Family<prometheus::Counter>& errors = prometheus::BuildCounter()
                                                        .Name("tessera_request_errors_total")
                                                        .Help("Requests that were answered with an error, by its code.")
                                                        .Register(registry);
  prometheus::Family<prometheus::Histogram>& seconds = prometheus::BuildHistogram()
                                                           .Name("tessera_request_seconds")
                                                           .Help("From the whole request to the end of its reply.")
                                                           .Register(registry);
};

CallMetrics::CallMetrics() : families_(std::make_unique<Families>()) {}
CallMetrics::~CallMetrics() = default;

void CallMetrics::Record(const CallRecord& call) {
  // Only known routes become labels, so that arbitrary client input cannot grow the table.
  const bool known = !call.route.empty();
  families_->requests
      .Add({{"protocol", call.protocol},
            {"route", known ? call.route : "none"},
            {"method", known ? call.method : "none"},
            {"status", std::to_string(call.status)}})
      .Increment();
  if (!call.error_code.empty())
    families_->errors.Add({{"protocol", call.protocol}, {"code", call.error_code}}).Increment();
  families_->seconds.Add({{"protocol", call.protocol}, {"route", known ? call.route : "none"}}, SecondsBuckets())
      .Observe(absl::ToDoubleSeconds(call.duration));
}

std::string CallMetrics::Text() const { return prometheus::TextSerializer().Serialize(families_->registry.Collect()); }

}  // namespace tessera::server
