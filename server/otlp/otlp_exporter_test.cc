#include "server/otlp/otlp_exporter.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

#include "absl/strings/str_cat.h"
#include "base/time/steady_time.h"
#include "server/otlp/http_span_transport.h"
#include "tests/support/span_receiver.h"
#include "tests/support/wait_until.h"

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kUnavailable[] = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

ExportedSpan Span(const std::string& name) {
  return {.trace_id = "0af7651916cd43dd8448eb211c80319c",
          .span_id = "b7ad6b7169203331",
          .name = name,
          .start = absl::FromUnixNanos(1700000000000000001),
          .end = absl::FromUnixNanos(1700000000000000002)};
}

class OtlpExporterTest : public ::testing::Test {
 protected:
  // By default a batch is sent when it has one span, and retried at once, and a receiver has any time to answer.
  std::unique_ptr<OtlpExporter> Create(OtlpExporterOptions options, const std::string& url = "") {
    if (options.timeout == OtlpExporterOptions().timeout) options.timeout = absl::Hours(1);
    options.resource = {.service_name = "studio", .service_version = "1", .instance_id = "i"};
    options.log = [this](const base::LogLine& line) {
      const std::lock_guard lock(mutex_);
      log_.push_back(line.text);
    };
    return std::make_unique<OtlpExporter>(
        std::make_unique<HttpSpanTransport>(
            url.empty() ? absl::StrCat("http://127.0.0.1:", receiver_.port(), "/v1/traces") : url,
            [] { return std::vector<std::string>{"Authorization: Bearer secret"}; }),
        options);
  }

  static OtlpExporterOptions AtOnce() { return {.batch_spans = 1, .first_pause = absl::Milliseconds(1)}; }

  static bool Counts(const OtlpExporter& exporter, const std::string& result, int64_t spans) {
    return absl::StrContains(exporter.MetricsText(),
                             absl::StrCat("tessera_otlp_spans_total{result=\"", result, "\"} ", spans, "\n"));
  }
  static void WaitFor(const OtlpExporter& exporter, const std::string& result, int64_t spans) {
    WaitUntil(absl::StrCat(spans, " spans are ", result), [&] { return Counts(exporter, result, spans); });
  }

  std::vector<std::string> Log() {
    const std::lock_guard lock(mutex_);
    return log_;
  }

  SpanReceiver receiver_;
  std::mutex mutex_;
  std::vector<std::string> log_;
};

TEST_F(OtlpExporterTest, SendsSpansInTheJsonEncodingOfTheProtocol) {
  const auto exporter = Create(AtOnce());
  ExportedSpan span = Span("POST /v1/jobs");
  span.parent_id = "00f067aa0ba902b7";
  span.kind = SpanKind::kServer;
  span.failed = true;
  span.attributes = {
      {"text", std::string("a \"b\" \xff")}, {"number", int64_t{1} << 60}, {"real", 0.5}, {"flag", true}};
  exporter->Add(span);
  WaitFor(*exporter, "exported", 1);
  const std::vector<SpanReceiver::Request> requests = receiver_.Requests();
  ASSERT_THAT(requests, SizeIs(1));
  EXPECT_THAT(requests[0].head,
              AllOf(HasSubstr("POST /v1/traces HTTP/1.1"), HasSubstr("Content-Type: application/json"),
                    HasSubstr("Authorization: Bearer secret")));
  const boost::json::value expected = boost::json::parse(R"json({"resourceSpans": [{
    "resource": {"attributes": [
      {"key": "service.name", "value": {"stringValue": "studio"}},
      {"key": "service.version", "value": {"stringValue": "1"}},
      {"key": "service.instance.id", "value": {"stringValue": "i"}}]},
    "scopeSpans": [{"scope": {"name": "tessera", "version": "1"}, "spans": [{
      "traceId": "0af7651916cd43dd8448eb211c80319c", "spanId": "b7ad6b7169203331", "parentSpanId": "00f067aa0ba902b7",
      "flags": 1, "name": "POST /v1/jobs", "kind": 2,
      "startTimeUnixNano": "1700000000000000001", "endTimeUnixNano": "1700000000000000002",
      "attributes": [
        {"key": "text", "value": {"stringValue": "a \"b\" ?"}},
        {"key": "number", "value": {"intValue": "1152921504606846976"}},
        {"key": "real", "value": {"doubleValue": 0.5}},
        {"key": "flag", "value": {"boolValue": true}}],
      "status": {"code": 2}}]}]}]})json");
  EXPECT_EQ(boost::json::parse(requests[0].body), expected);
}

TEST_F(OtlpExporterTest, PutsSpansThatWaitIntoOneMessage) {
  const auto exporter = Create({.batch_spans = 3, .interval = absl::Hours(1)});
  for (int i = 0; i < 3; ++i) exporter->Add(Span(absl::StrCat(i)));
  WaitFor(*exporter, "exported", 3);
  EXPECT_EQ(receiver_.RequestCount(), 1u);
}

TEST_F(OtlpExporterTest, SendsASpanThatStaysAloneAfterTheInterval) {
  const auto exporter = Create({.interval = absl::Milliseconds(1)});
  exporter->Add(Span("alone"));
  WaitFor(*exporter, "exported", 1);
}

TEST_F(OtlpExporterTest, SendsABatchAgainUntilTheReceiverTakesIt) {
  receiver_.Answer({kUnavailable, "HTTP/1.1 429 Too Many\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n",
                    "garbage\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\ncut"});
  const auto exporter = Create(AtOnce());
  exporter->Add(Span("a"));
  WaitFor(*exporter, "exported", 1);
  EXPECT_EQ(receiver_.RequestCount(), 5u);
  EXPECT_THAT(Log(), IsEmpty()) << "nothing was lost";
}

TEST_F(OtlpExporterTest, WaitsAsLongAsTheReceiverAsks) {
  receiver_.Answer({"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nContent-Length: 0\r\n\r\n"});
  const auto exporter = Create(AtOnce());
  const absl::Duration begun = base::SteadyNow();
  exporter->Add(Span("a"));
  WaitFor(*exporter, "exported", 1);
  EXPECT_GE(base::SteadyNow() - begun, absl::Seconds(1));
}

TEST_F(OtlpExporterTest, GivesABatchUpAfterSomeAttemptsAndSaysSoOnce) {
  receiver_.Answer({kUnavailable, kUnavailable, kUnavailable, kUnavailable});
  OtlpExporterOptions options = AtOnce();
  options.attempts = 2;
  const auto exporter = Create(options);
  exporter->Add(Span("a"));
  exporter->Add(Span("b"));
  WaitFor(*exporter, "failed", 2);
  exporter->Add(Span("c"));
  WaitFor(*exporter, "exported", 1);
  WaitUntil("the log says so", [&] { return Log().size() == 2; });
  EXPECT_THAT(Log(), ElementsAre(HasSubstr("status 503"), HasSubstr("takes spans again")));
}

TEST_F(OtlpExporterTest, FollowsNoRedirectAndDoesNotRepeatWhatIsRefused) {
  receiver_.Answer({absl::StrCat("HTTP/1.1 307 Temporary Redirect\r\nLocation: http://127.0.0.1:", receiver_.port(),
                                 "/elsewhere\r\nContent-Length: 0\r\n\r\n"),
                    "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"});
  const auto exporter = Create(AtOnce());
  exporter->Add(Span("a"));
  WaitFor(*exporter, "rejected", 1);
  exporter->Add(Span("b"));
  WaitFor(*exporter, "rejected", 2);
  EXPECT_EQ(receiver_.RequestCount(), 2u);
}

TEST_F(OtlpExporterTest, CountsWhatTheReceiverRefusesOfAMessage) {
  const std::string body = R"({"partialSuccess": {"rejectedSpans": "2"}})";
  receiver_.Answer({absl::StrCat("HTTP/1.1 200 OK\r\nContent-Length: ", body.size(), "\r\n\r\n", body)});
  const auto exporter = Create({.batch_spans = 3, .interval = absl::Hours(1)});
  for (int i = 0; i < 3; ++i) exporter->Add(Span("a"));
  WaitFor(*exporter, "rejected", 2);
  EXPECT_TRUE(Counts(*exporter, "exported", 1));
}

TEST_F(OtlpExporterTest, DropsAndCountsWhatDoesNotFitWhileTheReceiverIsSilent) {
  receiver_.Answer({SpanReceiver::kNoAnswer});
  OtlpExporterOptions options = AtOnce();
  options.queued_spans = 10;
  options.timeout = absl::Hours(1);
  const auto exporter = Create(options);
  exporter->Add(Span("on its way"));
  WaitUntil("the receiver has it", [&] { return receiver_.RequestCount() == 1; });
  for (int i = 0; i < 15; ++i) exporter->Add(Span("waits"));
  EXPECT_TRUE(Counts(*exporter, "dropped", 5)) << exporter->MetricsText();
  EXPECT_THAT(exporter->MetricsText(), HasSubstr("tessera_otlp_queued_spans 10\n"));
}

TEST_F(OtlpExporterTest, EndsARequestThatIsNotAnsweredInTime) {
  receiver_.Answer({SpanReceiver::kNoAnswer});
  OtlpExporterOptions options = AtOnce();
  options.timeout = absl::Milliseconds(50);
  options.attempts = 1000;
  const auto exporter = Create(options);
  exporter->Add(Span("a"));
  WaitFor(*exporter, "exported", 1);
  EXPECT_GE(receiver_.RequestCount(), 2u) << "a later answer may be late as well";
}

TEST_F(OtlpExporterTest, SendsWhatWaitsWhenItStopsAndNothingAfterwards) {
  const auto exporter = Create({.interval = absl::Hours(1)});
  for (int i = 0; i < 3; ++i) exporter->Add(Span("a"));
  exporter->Stop(absl::Minutes(1));
  EXPECT_THAT(receiver_.Spans(), SizeIs(3));
  exporter->Add(Span("late"));
  EXPECT_TRUE(Counts(*exporter, "dropped", 1));
}

TEST_F(OtlpExporterTest, StopsInTimeAlthoughTheReceiverIsSilent) {
  receiver_.Answer({SpanReceiver::kNoAnswer});
  OtlpExporterOptions options = AtOnce();
  options.timeout = absl::Hours(1);
  const auto exporter = Create(options);
  exporter->Add(Span("on its way"));
  WaitUntil("the receiver has it", [&] { return receiver_.RequestCount() == 1; });
  exporter->Add(Span("waits"));
  exporter->Stop(absl::Milliseconds(10));
  EXPECT_TRUE(Counts(*exporter, "failed", 2)) << exporter->MetricsText();
}

TEST_F(OtlpExporterTest, StopsWithoutWaitingForThePauseBetweenAttempts) {
  receiver_.Answer({"HTTP/1.1 503 Unavailable\r\nRetry-After: 200\r\nContent-Length: 0\r\n\r\n"});
  const auto exporter = Create(AtOnce());
  exporter->Add(Span("a"));
  WaitUntil("it was refused once", [&] { return receiver_.RequestCount() == 1; });
  exporter->Stop(absl::Minutes(1));
  EXPECT_TRUE(Counts(*exporter, "exported", 1)) << exporter->MetricsText();
}

TEST_F(OtlpExporterTest, OutlivesAReceiverThatDoesNotExistAndNamesNoSecretOfIt) {
  OtlpExporterOptions options = AtOnce();
  options.attempts = 1;
  const auto exporter = Create(options, "http://127.0.0.1:1/secret/v1/traces");
  exporter->Add(Span("a"));
  WaitFor(*exporter, "failed", 1);
  WaitUntil("the log says so", [&] { return Log().size() == 1; });
  EXPECT_THAT(Log()[0], AllOf(HasSubstr("1 spans were lost"), Not(HasSubstr("secret"))));
}

}  // namespace
}  // namespace tessera::server
