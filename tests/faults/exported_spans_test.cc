// Tests the spans that a real server with fake workers exports to a receiver of the OpenTelemetry protocol.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"
#include "tests/support/span_receiver.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParent[] = "b7ad6b7169203331";

class ExportedSpansTest : public ::testing::Test {
 protected:
  // With a long timeout no span is sent a second time.
  TestServer& Start(const std::string& more = ", timeout: 60s") {
    server_ = std::make_unique<TestServer>(
        TestServerOptions{.worker = FAKE_WORKER,
                          .fake_workers = true,
                          .groups = {"{model: nowhere, layout: \"cfg=2\"}"},
                          .settings = absl::StrCat("tracing: {endpoint: \"http://127.0.0.1:", receiver_.port(),
                                                   "\", interval: 10ms", more, "}\n"),
                          .admin = "{port: 0}"});
    server_->options().script = absl::StrCat("step-time=5 gate=", server_->folder(), "/gate");
    EXPECT_TRUE(server_->Start());
    server_->WaitUntilReady();
    return *server_;
  }

  std::string Submit(const std::string& body, const std::string& flags) {
    const TestResponse accepted =
        HttpTestClient(server_->port())
            .Call("POST", "/v1/jobs", body, {{"traceparent", absl::StrCat("00-", kTraceId, "-", kParent, "-", flags)}});
    EXPECT_EQ(accepted.status, 202) << accepted.body;
    return std::string(boost::json::parse(accepted.body).at("id").as_string());
  }

  // Returns the value of an attribute; empty: there is none.
  static std::string Text(const boost::json::object& span, const std::string& name) {
    for (const boost::json::value& attribute : span.at("attributes").as_array()) {
      if (attribute.at("key") != boost::json::string_view(name)) continue;
      return std::string(attribute.at("value").as_object().begin()->value().as_string());
    }
    return "";
  }

  static std::string Field(const boost::json::object& span, const std::string& name) {
    return span.contains(name) ? std::string(span.at(name).as_string()) : "";
  }

  // Returns the spans of a job's images and calls by name and the image's index.
  std::map<std::string, boost::json::object> SpansOf(const std::string& job) const {
    std::map<std::string, boost::json::object> spans;
    for (const boost::json::object& span : receiver_.Spans()) {
      if (Text(span, "tessera.job.id") != job) continue;
      const std::string name = absl::StrCat(Field(span, "name"), " ", Text(span, "tessera.image.index"));
      EXPECT_TRUE(spans.emplace(name, span).second || absl::StartsWith(name, "GET")) << name << " comes twice";
    }
    return spans;
  }

  // A server that ends gives what is left of its spans little time.
  void WaitUntilReceived(const std::string& job, const std::vector<std::string>& names) const {
    WaitUntil("the spans of " + job, [&] {
      const std::map<std::string, boost::json::object> spans = SpansOf(job);
      return std::ranges::all_of(names, [&](const std::string& name) { return spans.contains(name); });
    });
  }

  std::string Received() const {
    std::string all;
    for (const SpanReceiver::Request& request : receiver_.Requests()) absl::StrAppend(&all, request.body);
    return all;
  }

  static int64_t Nanoseconds(const boost::json::object& span, const std::string& name) {
    int64_t value = 0;
    EXPECT_TRUE(absl::SimpleAtoi(Field(span, name), &value));
    return value;
  }

  SpanReceiver receiver_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(ExportedSpansTest, ShowACallItsImagesAndTheirStagesInTheTraceOfTheCaller) {
  TestServer& server = Start();
  const std::string job = Submit(R"({"prompt": "secret words", "n": 2})", "01");
  EXPECT_EQ(server.Ended(job), "done");
  WaitUntilReceived(job, {"POST /v1/jobs ", "image 0", "image 1"});
  EXPECT_EQ(server.Terminate(), 0);

  EXPECT_THAT(Received(), AllOf(Not(HasSubstr("secret")), HasSubstr("service.name")));
  std::map<std::string, boost::json::object> spans = SpansOf(job);
  const boost::json::object call = spans.at("POST /v1/jobs ");
  EXPECT_EQ(Field(call, "traceId"), kTraceId);
  EXPECT_EQ(Field(call, "parentSpanId"), kParent);
  EXPECT_EQ(call.at("kind"), 2);
  for (const std::string index : {"0", "1"}) {
    const boost::json::object image = spans.at("image " + index);
    EXPECT_EQ(Field(image, "traceId"), kTraceId);
    EXPECT_EQ(Field(image, "parentSpanId"), Field(call, "spanId"));
    EXPECT_EQ(Text(image, "tessera.model"), "nowhere");
    EXPECT_EQ(Text(image, "tessera.outcome"), "done");
    EXPECT_EQ(Text(image, "tessera.layout"), "cfg=2");
    EXPECT_EQ(Text(image, "tessera.steps"), "6");
    EXPECT_NE(Text(image, "tessera.image.width"), "0");
    for (const std::string stage : {"queued ", "encode ", "denoise ", "decode ", "image encode ", "store "}) {
      const boost::json::object span = spans.at(stage + index);
      EXPECT_EQ(Field(span, "traceId"), kTraceId) << stage;
      EXPECT_EQ(Field(span, "parentSpanId"), Field(image, "spanId")) << stage;
      EXPECT_GE(Nanoseconds(span, "startTimeUnixNano"), Nanoseconds(image, "startTimeUnixNano")) << stage;
      EXPECT_LE(Nanoseconds(span, "endTimeUnixNano"), Nanoseconds(image, "endTimeUnixNano")) << stage;
    }
    EXPECT_EQ(Text(spans.at("denoise " + index), "tessera.steps"), "6");
  }
}

TEST_F(ExportedSpansTest, KeepTheTraceOfAJobThatTheNextServerContinues) {
  TestServer& server = Start();
  const std::string job = Submit(R"({"prompt": "gated apple"})", "01");
  WaitUntil("running", [&] { return server.StatusOf(job) == "running"; });
  WaitUntil("the call and the wait were exported", [&] { return SpansOf(job).contains("queued 0"); });
  server.Kill();
  const std::map<std::string, boost::json::object> before = SpansOf(job);
  server.Write("gate", "");
  ASSERT_TRUE(server.Start());
  EXPECT_EQ(server.Ended(job), "done");
  WaitUntil("the image's span", [&] {
    return std::ranges::any_of(receiver_.Spans(), [&](const boost::json::object& span) {
      return Text(span, "tessera.job.id") == job && Field(span, "name") == "image";
    });
  });
  EXPECT_EQ(server.Terminate(), 0);
  std::vector<boost::json::object> images, decodings;
  for (const boost::json::object& span : receiver_.Spans()) {
    if (Text(span, "tessera.job.id") != job) continue;
    EXPECT_EQ(Field(span, "traceId"), kTraceId) << span;
    if (Field(span, "name") == "image") images.push_back(span);
    if (Field(span, "name") == "decode") decodings.push_back(span);
  }
  ASSERT_THAT(images, SizeIs(1));
  ASSERT_THAT(decodings, SizeIs(1));
  EXPECT_EQ(Field(before.at("queued 0"), "parentSpanId"), Field(images[0], "spanId")) << "of the first server";
  EXPECT_EQ(Field(decodings[0], "parentSpanId"), Field(images[0], "spanId")) << "of the second server";
}

TEST_F(ExportedSpansTest, AreNotMadeIfTheCallerSaysSo) {
  TestServer& server = Start(", timeout: 60s, sampling_ratio: 0");
  const std::string silent = Submit(R"({"prompt": "apple"})", "00"), own = server.Submit("apple"),
                    recorded = Submit(R"({"prompt": "apple"})", "01");
  for (const std::string& job : {silent, own, recorded}) EXPECT_EQ(server.Ended(job), "done");
  WaitUntilReceived(recorded, {"image 0"});
  EXPECT_EQ(server.Terminate(), 0);
  EXPECT_THAT(SpansOf(silent), SizeIs(0));
  EXPECT_THAT(SpansOf(own), SizeIs(0));
  EXPECT_TRUE(SpansOf(recorded).contains("image 0"));
}

TEST_F(ExportedSpansTest, DelayNeitherJobsNorTheEndWhenTheReceiverIsSilent) {
  receiver_.Answer(std::vector<std::string>(100, SpanReceiver::kNoAnswer));
  TestServer& server = Start(", queued_spans: 64, batch_spans: 8, timeout: 1h");
  EXPECT_EQ(server.Ended(server.Submit("apple")), "done");
  WaitUntil("a first batch, which no longer waits", [&] { return receiver_.RequestCount() == 1; });
  std::vector<std::string> jobs;
  for (int i = 0; i < 20; ++i) jobs.push_back(server.Submit("apple"));
  for (const std::string& job : jobs) EXPECT_EQ(server.Ended(job), "done");
  const std::string metrics = HttpTestClient(server.admin_port()).Call("GET", "/metrics").body;
  EXPECT_THAT(metrics, AllOf(HasSubstr("tessera_otlp_spans_total{result=\"exported\"} 0\n"),
                             HasSubstr("tessera_otlp_queued_spans 64\n")));
  EXPECT_THAT(metrics, Not(HasSubstr("tessera_otlp_spans_total{result=\"dropped\"} 0\n")));
  EXPECT_EQ(server.Terminate(), 0);
}

TEST_F(ExportedSpansTest, RefuseAStartWithHeadersThatCannotBeRead) {
  TestServer server({.worker = FAKE_WORKER,
                     .fake_workers = true,
                     .groups = {"{model: nowhere}"},
                     .settings = "tracing: {endpoint: \"http://127.0.0.1:1\", headers_file: /nowhere/headers}\n"});
  EXPECT_THAT(server.ErrorsOfStart(), HasSubstr("tracing.headers_file cannot be read"));
}

}  // namespace
}  // namespace tessera
