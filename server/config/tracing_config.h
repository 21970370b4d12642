// TracingConfig is the part of the configuration that says where spans are exported to (server_config.h).
#pragma once

#include <cstdint>
#include <string>
#include <tuple>

#include "absl/time/time.h"
#include "base/fields/duration_field.h"
#include "base/fields/fields.h"

namespace tessera::server {

struct TracingConfig {
  std::string endpoint;  // base URL; empty: nowhere, unless `environment` names one
  bool environment = false;
  std::string headers_file;
  std::string service_name;
  double sampling_ratio = 1;
  bool key_names = false;
  int64_t queued_spans = 4096;
  int64_t batch_spans = 512;
  absl::Duration interval = absl::Seconds(5);
  absl::Duration timeout = absl::Seconds(10);

  bool operator==(const TracingConfig&) const = default;
};

constexpr auto FieldsOf(const TracingConfig*) {
  using base::Field, base::Integer, base::Number;
  using T = TracingConfig;
  return std::tuple(
      Field("endpoint", &T::endpoint,
            "Base URL of a receiver of the OpenTelemetry protocol, such as `http://localhost:4318`: spans are sent to "
            "its path `/v1/traces`; without it, nowhere ([traces](#spans-for-opentelemetry))"),
      Field("environment", &T::environment,
            "Whether OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_EXPORTER_OTLP_HEADERS and OTEL_SERVICE_NAME apply where "
            "`endpoint`, `headers_file` and `service_name` are not set"),
      Field("headers_file", &T::headers_file, base::Text{.is_path = true},
            "A file of header lines, such as `Authorization: Bearer SECRET`, which each request has; it is read again "
            "for each"),
      Field("service_name", &T::service_name, "`service.name` of the spans; without it, `tessera`"),
      Field("sampling_ratio", &T::sampling_ratio, Number{0, 1},
            "The part of the traces that begin here which is recorded; for a call with a valid `traceparent`, its "
            "sampled flag decides"),
      Field("key_names", &T::key_names, "Whether spans have the names of API keys"),
      Field("queued_spans", &T::queued_spans, Integer{64, 1 << 20},
            "Spans that wait at most; further ones are dropped and counted"),
      Field("batch_spans", &T::batch_spans, Integer{1, 8192}, "Spans of one request at most"),
      Field("interval", &T::interval, "The longest time that a span waits for further ones"),
      Field("timeout", &T::timeout, "Time for one request"));
}

}  // namespace tessera::server
