// OtlpExporter sends spans to a receiver of the OpenTelemetry protocol, in batches, on a thread. Thread-safe.
//
// Add never waits: spans beyond the bound of the queue are dropped and counted. A batch that the receiver cannot take
// at present (429, 502, 503, 504 or no answer) is sent again after a growing pause, or after Retry-After, a few times;
// then it is given up. The log has a line when a batch is lost, and one when the receiver takes batches again.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "base/log/log_line.h"
#include "base/time/clock.h"
#include "server/otlp/span_message.h"
#include "server/otlp/span_transport.h"
#include "server/trace/exported_span.h"

namespace tessera::server {

struct OtlpExporterOptions {
  SpanResource resource;
  size_t queued_spans = 4096;                     // the most that wait
  size_t batch_spans = 512;                       // the most in one message
  absl::Duration interval = absl::Seconds(5);     // the longest time that a span waits for further ones
  absl::Duration timeout = absl::Seconds(10);     // of one request
  absl::Duration first_pause = absl::Seconds(1);  // before a batch is sent again; it doubles
  int attempts = 5;                               // for one batch
  base::EventLog log;                             // may be null
};

class OtlpExporter final : public SpanSink {
 public:
  OtlpExporter(std::unique_ptr<SpanTransport> transport, OtlpExporterOptions options);
  ~OtlpExporter() override;  // as Stop, without waiting

  OtlpExporter(const OtlpExporter&) = delete;
  OtlpExporter& operator=(const OtlpExporter&) = delete;

  void Add(ExportedSpan span) override;
  absl::Time Now() const override;

  // Sends what waits, until `timeout` has passed, and ends. Spans that are added later are dropped.
  void Stop(absl::Duration timeout);

  // Returns complete families in the text format: tessera_otlp_spans_total by result, tessera_otlp_queued_spans.
  std::string MetricsText() const;

 private:
  enum Result { kExported, kDropped, kRejected, kFailed, kResults };

  void Run();
  // Waits for a batch; empty: the exporter has ended.
  std::vector<ExportedSpan> TakeBatch();
  void Send(const std::vector<ExportedSpan>& batch);
  bool IsStopping() const;
  // Waits between two attempts, not longer than until Stop. Returns false if there is no time for another one.
  bool Pause(absl::Duration pause);
  void Count(Result result, int64_t spans);
  void ReportLoss(const std::string& reason, size_t spans);
  void ReportSuccess();

  const std::unique_ptr<SpanTransport> transport_;
  const OtlpExporterOptions options_;
  const base::SystemClock clock_;
  const absl::Time started_;
  const absl::Duration started_elapsed_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::deque<ExportedSpan> queue_;
  std::array<int64_t, kResults> counts_ = {};
  absl::Duration stop_at_ = absl::InfiniteDuration();  // steady time; infinite: not stopping
  bool is_losing_ = false;                             // used by the thread
  std::thread thread_;
};

}  // namespace tessera::server
