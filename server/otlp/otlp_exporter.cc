#include "server/otlp/otlp_exporter.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/text/random_bytes.h"
#include "base/threads/start_thread.h"
#include "base/time/steady_time.h"

namespace tessera::server {
namespace {

constexpr absl::Duration kLongestPause = absl::Seconds(30);
constexpr absl::Duration kLongestRetryAfter = absl::Minutes(5);

std::chrono::nanoseconds Chrono(absl::Duration duration) {
  return absl::ToChronoNanoseconds(std::clamp(duration, absl::ZeroDuration(), absl::Hours(1)));
}

// Servers that lost the same receiver must not come back to it at the same moment.
absl::Duration WithJitter(absl::Duration pause) {
  return pause * (0.5 + 0.5 * static_cast<double>(base::RandomNumber<uint16_t>()) / 65535);
}

}  // namespace

OtlpExporter::OtlpExporter(std::unique_ptr<SpanTransport> transport, OtlpExporterOptions options)
    : transport_(std::move(transport)),
      options_(std::move(options)),
      started_(clock_.Now()),
      started_elapsed_(clock_.Elapsed()),
      thread_(base::StartThread([this] { Run(); })) {}

OtlpExporter::~OtlpExporter() { Stop(absl::ZeroDuration()); }

absl::Time OtlpExporter::Now() const { return started_ + (clock_.Elapsed() - started_elapsed_); }

void OtlpExporter::Add(ExportedSpan span) {
  const std::lock_guard lock(mutex_);
  if (queue_.size() >= options_.queued_spans || stop_at_ != absl::InfiniteDuration()) {
    ++counts_[kDropped];
    return;
  }
  queue_.push_back(std::move(span));
  if (queue_.size() == options_.batch_spans) changed_.notify_all();
}

void OtlpExporter::Stop(absl::Duration timeout) {
  {
    const std::lock_guard lock(mutex_);
    stop_at_ = std::min(stop_at_, base::SteadyNow() + timeout);
    transport_->HurryUntil(stop_at_);
    changed_.notify_all();
  }
  if (thread_.joinable()) thread_.join();
}

void OtlpExporter::Run() {
  while (true) {
    const std::vector<ExportedSpan> batch = TakeBatch();
    if (batch.empty()) return;
    Send(batch);
  }
}

std::vector<ExportedSpan> OtlpExporter::TakeBatch() {
  std::unique_lock lock(mutex_);
  const auto is_due = [this] { return stop_at_ != absl::InfiniteDuration() || queue_.size() >= options_.batch_spans; };
  do {
    changed_.wait_for(lock, Chrono(options_.interval), is_due);
  } while (queue_.empty() && stop_at_ == absl::InfiniteDuration());
  if (base::SteadyNow() >= stop_at_) {
    counts_[kFailed] += static_cast<int64_t>(queue_.size());
    queue_.clear();
  }
  const auto end = queue_.begin() + static_cast<int64_t>(std::min(queue_.size(), options_.batch_spans));
  std::vector<ExportedSpan> batch(std::make_move_iterator(queue_.begin()), std::make_move_iterator(end));
  queue_.erase(queue_.begin(), end);
  return batch;
}

void OtlpExporter::Send(const std::vector<ExportedSpan>& batch) {
  const std::string message = SpanMessage(options_.resource, batch);
  const auto spans = static_cast<int64_t>(batch.size());
  absl::Duration pause = options_.first_pause;
  for (int attempt = 1;; ++attempt) {
    // While the exporter ends, a batch has the rest of the time and one attempt.
    const bool is_last = IsStopping() || attempt == options_.attempts;
    const SpanReply reply = transport_->Post(message, options_.timeout);
    if (reply.status / 100 == 2) {
      const int64_t rejected = std::min(RejectedSpans(reply.body), spans);
      Count(kExported, spans - rejected);
      Count(kRejected, rejected);
      return ReportSuccess();
    }
    const std::string reason =
        reply.status == 0 ? reply.error : absl::StrCat("it answers with the status ", reply.status);
    if (!MayRetry(reply)) {
      Count(kRejected, spans);
      return ReportLoss(reason, batch.size());
    }
    const absl::Duration wait =
        std::max(WithJitter(pause), std::min(reply.retry_after.value_or(absl::ZeroDuration()), kLongestRetryAfter));
    if (is_last || !Pause(wait)) {
      Count(kFailed, spans);
      return ReportLoss(reason, batch.size());
    }
    pause = std::min(pause * 2, kLongestPause);
  }
}

bool OtlpExporter::IsStopping() const {
  const std::lock_guard lock(mutex_);
  return stop_at_ != absl::InfiniteDuration();
}

bool OtlpExporter::Pause(absl::Duration pause) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, Chrono(pause), [this] { return stop_at_ != absl::InfiniteDuration(); });
  return base::SteadyNow() < stop_at_;
}

void OtlpExporter::Count(Result result, int64_t spans) {
  const std::lock_guard lock(mutex_);
  counts_[result] += spans;
}

void OtlpExporter::ReportLoss(const std::string& reason, size_t spans) {
  if (std::exchange(is_losing_, true) || !options_.log) return;
  options_.log({base::LogLevel::kWarning,
                absl::StrCat(spans, " spans were lost, because the receiver of traces failed: ", reason,
                             "; further losses are counted in tessera_otlp_spans_total")});
}

void OtlpExporter::ReportSuccess() {
  if (std::exchange(is_losing_, false) && options_.log) options_.log("the receiver of traces takes spans again");
}

std::string OtlpExporter::MetricsText() const {
  constexpr const char* kNames[kResults] = {"exported", "dropped", "rejected", "failed"};
  const std::lock_guard lock(mutex_);
  std::string text =
      "# HELP tessera_otlp_spans_total Spans by what became of them: exported, dropped because the queue was full, "
      "rejected by the receiver, or failed\n# TYPE tessera_otlp_spans_total counter\n";
  for (int result = 0; result < kResults; ++result) {
    absl::StrAppend(&text, "tessera_otlp_spans_total{result=\"", kNames[result], "\"} ", counts_[result], "\n");
  }
  absl::StrAppend(&text,
                  "# HELP tessera_otlp_queued_spans Spans that wait for the next batch\n"
                  "# TYPE tessera_otlp_queued_spans gauge\ntessera_otlp_queued_spans ",
                  queue_.size(), "\n");
  return text;
}

}  // namespace tessera::server
