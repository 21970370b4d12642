// Tests the spans of calls and of images, which continue and store the trace of the caller.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "absl/strings/str_cat.h"
#include "server/trace/call_spans.h"
#include "server/trace/group_trace.h"
#include "server/trace/image_spans.h"
#include "server/trace/queue_trace.h"
#include "server/trace/trace_context.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr char kTraceId[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kCaller[] = "b7ad6b7169203331";

class Collected final : public SpanSink {
 public:
  void Add(ExportedSpan span) override { spans.push_back(std::move(span)); }
  absl::Time Now() const override { return now; }

  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const ExportedSpan& span : spans) names.push_back(span.name);
    return names;
  }

  std::vector<ExportedSpan> spans;
  absl::Time now = absl::FromUnixSeconds(1700000000);
};

std::string TextOf(const ExportedSpan& span, const std::string& name) {
  for (const SpanAttribute& attribute : span.attributes) {
    if (attribute.name != name) continue;
    if (const auto* number = std::get_if<int64_t>(&attribute.value)) return absl::StrCat(*number);
    return std::get<std::string>(attribute.value);
  }
  return "none";
}

CallRecord Call(const std::string& trace_parent) {
  return {.request_id = "r",
          .method = "POST",
          .route = "/v1/jobs",
          .status = 202,
          .tenant = "studio",
          .job = "job_1",
          .trace_parent = trace_parent,
          .duration = absl::Seconds(2)};
}

class SpansTest : public ::testing::Test {
 protected:
  // Returns the record of a call that has begun and ended.
  CallRecord Ended(CallRecord call, SpanOptions options = {}) {
    const CallSpans spans(sink_, options);
    spans.Begin(call);
    spans.End(call);
    return call;
  }

  Collected sink_;
  const TracedImage image_ = {
      .job = "job_1", .index = 2, .trace_parent = absl::StrCat("00-", kTraceId, "-", kCaller, "-01")};
  const ImageFacts facts_ = {.model = "flux",
                             .width = 64,
                             .height = 32,
                             .steps = 7,
                             .key = "studio",
                             .group = "flux-0",
                             .layout = "cfg=2",
                             .created = sink_.now - absl::Seconds(9)};
};

TEST_F(SpansTest, OfACallContinueTheTraceOfItsCaller) {
  const CallRecord call = Ended(Call(absl::StrCat("00-", kTraceId, "-", kCaller, "-01")));
  ASSERT_THAT(sink_.spans, SizeIs(1));
  const ExportedSpan& span = sink_.spans[0];
  EXPECT_EQ(span.trace_id, kTraceId);
  EXPECT_EQ(span.parent_id, kCaller);
  EXPECT_NE(span.span_id, kCaller);
  EXPECT_EQ(call.trace_parent, absl::StrCat("00-", kTraceId, "-", span.span_id, "-01")) << "the job stores this";
  EXPECT_EQ(span.name, "POST /v1/jobs");
  EXPECT_EQ(span.kind, SpanKind::kServer);
  EXPECT_EQ(span.end - span.start, absl::Seconds(2));
  EXPECT_EQ(TextOf(span, "http.response.status_code"), "202");
  EXPECT_EQ(TextOf(span, "tessera.job.id"), "job_1");
}

TEST_F(SpansTest, OfACallWithoutAValidCallerBeginATrace) {
  const CallRecord first = Ended(Call("")), second = Ended(Call(""));
  ASSERT_THAT(sink_.spans, SizeIs(2));
  EXPECT_EQ(sink_.spans[0].parent_id, "");
  EXPECT_NE(sink_.spans[0].trace_id, sink_.spans[1].trace_id);
  EXPECT_NE(first.trace_parent, second.trace_parent);
}

TEST_F(SpansTest, OfATraceThatIsNotRecordedAreNotExported) {
  const CallRecord call = Ended(Call(absl::StrCat("00-", kTraceId, "-", kCaller, "-00")));
  Ended(Call(""), {.sampling_ratio = 0});
  EXPECT_THAT(sink_.spans, IsEmpty());
  const std::optional<TraceContext> stored = ParseTraceParent(call.trace_parent);
  ASSERT_TRUE(stored.has_value());
  EXPECT_FALSE(stored->sampled);
  const ImageSpans spans(sink_, {});
  spans.AddImage({.job = "job_1", .trace_parent = call.trace_parent}, facts_, "done");
  EXPECT_THAT(sink_.spans, IsEmpty());
}

TEST_F(SpansTest, OfHealthChecksAreNotExported) {
  CallRecord call = Call("");
  for (const char* route : {"/livez", "/readyz", "/health", "/metrics"}) {
    call.route = route;
    Ended(call);
  }
  EXPECT_THAT(sink_.spans, IsEmpty());
}

TEST_F(SpansTest, FailOnlyByErrorsOfTheServer) {
  CallRecord call = Call("");
  for (const int status : {0, 200, 404, 429}) {
    call.status = status;
    Ended(call);
    EXPECT_FALSE(sink_.spans.back().failed) << status;
  }
  call.status = 503;
  Ended(call);
  EXPECT_TRUE(sink_.spans.back().failed);
  call = {.protocol = "grpc", .route = "/tessera.v1.ImageService/GetJob", .status = 5};
  Ended(call);
  EXPECT_FALSE(sink_.spans.back().failed);
  EXPECT_EQ(sink_.spans.back().name, "tessera.v1.ImageService/GetJob");
  EXPECT_EQ(TextOf(sink_.spans.back(), "rpc.method"), "GetJob");
  call.status = 13;
  Ended(call);
  EXPECT_TRUE(sink_.spans.back().failed);
}

TEST_F(SpansTest, NameKeysOnlyIfTheConfigurationSaysSo) {
  Ended(Call(""));
  ImageSpans(sink_, {}).AddImage(image_, facts_, "done");
  for (const ExportedSpan& span : sink_.spans) EXPECT_EQ(TextOf(span, "tessera.key.name"), "none");
  sink_.spans.clear();
  Ended(Call(""), {.key_names = true});
  ImageSpans(sink_, {.key_names = true}).AddImage(image_, facts_, "done");
  for (const ExportedSpan& span : sink_.spans) EXPECT_EQ(TextOf(span, "tessera.key.name"), "studio");
}

TEST_F(SpansTest, OfAnImageAreChildrenOfTheCallAcrossProcesses) {
  const ImageSpans before(sink_, {}), after(sink_, {});
  before.AddStage(image_, {.name = "queued", .start = sink_.now, .end = sink_.now});
  after.AddStage(image_, {.name = "decode", .start = sink_.now, .end = sink_.now});
  after.AddImage(image_, facts_, "done");
  ASSERT_THAT(sink_.spans, SizeIs(3));
  const ExportedSpan& whole = sink_.spans[2];
  for (const ExportedSpan& span : sink_.spans) EXPECT_EQ(span.trace_id, kTraceId);
  EXPECT_EQ(whole.parent_id, kCaller);
  EXPECT_EQ(sink_.spans[0].parent_id, whole.span_id);
  EXPECT_EQ(sink_.spans[1].parent_id, whole.span_id);
  EXPECT_NE(sink_.spans[0].span_id, sink_.spans[1].span_id);
  EXPECT_EQ(whole.start, facts_.created);
  EXPECT_EQ(TextOf(whole, "tessera.model"), "flux");
  EXPECT_EQ(TextOf(whole, "tessera.image.width"), "64");
  EXPECT_EQ(TextOf(whole, "tessera.steps"), "7");
  EXPECT_EQ(TextOf(whole, "tessera.layout"), "cfg=2");
  EXPECT_FALSE(whole.failed);
  TracedImage other = image_;
  other.index = 3;
  after.AddImage(other, facts_, "failed");
  EXPECT_NE(sink_.spans[3].span_id, whole.span_id);
  EXPECT_TRUE(sink_.spans[3].failed);
}

TEST_F(SpansTest, OfAJobThatWasStoredWithoutATraceShareOne) {
  const TracedImage first = {.job = "job_1"}, second = {.job = "job_1", .index = 1}, other = {.job = "job_2"};
  const ImageSpans spans(sink_, {});
  for (const TracedImage& image : {first, second, other}) spans.AddImage(image, facts_, "done");
  EXPECT_EQ(sink_.spans[0].trace_id, sink_.spans[1].trace_id);
  EXPECT_NE(sink_.spans[0].trace_id, sink_.spans[2].trace_id);
  EXPECT_EQ(sink_.spans[0].parent_id, "");
}

TEST_F(SpansTest, HaveOneForAllStepsOfAnImage) {
  const ImageSpans spans(sink_, {});
  {
    GroupTrace group(nullptr, "flux-0", 2, &spans);
    QueueTrace queue(nullptr, &spans);
    queue.OnQueued(image_, sink_.now - absl::Seconds(1));
    queue.OnClaimed(image_);
    group.OnEncoded(1, image_, group.Now(), {});
    group.OnEncoded(2, {.job = "job_2", .trace_parent = image_.trace_parent}, group.Now(), {});
    for (int step = 0; step < 3; ++step) {
      sink_.now += absl::Seconds(1);
      group.OnStepped({1}, group.Now() - absl::Seconds(1), absl::InfiniteFuture(), 1);
    }
    group.OnStepped({1, 2}, group.Now(), absl::InfiniteFuture(), 1);
    group.OnDecoded(1, "decode", group.Now(), 0);
    group.OnEnded(1);
    queue.OnImageEncoded(image_, sink_.now, sink_.now);
    queue.OnEnded(image_, facts_, "done");
    queue.OnForgotten(image_, "done");
    EXPECT_THAT(sink_.Names(),
                ElementsAre("queued", "encode", "encode", "denoise", "decode", "image encode", "store", "image"));
    const ExportedSpan& denoise = sink_.spans[3];
    EXPECT_EQ(TextOf(denoise, "tessera.steps"), "4");
    EXPECT_EQ(TextOf(denoise, "tessera.batch.largest"), "2");
    EXPECT_EQ(denoise.end - denoise.start, absl::Seconds(3));
  }
  EXPECT_EQ(sink_.Names().back(), "denoise") << "steps of an image that did not end are exported with the group";
}

TEST_F(SpansTest, ShowTheWaitOfAnImageThatEndsInTheQueue) {
  const ImageSpans spans(sink_, {});
  QueueTrace queue(nullptr, &spans);
  queue.OnQueued(image_, sink_.now);
  queue.OnEnded(image_, facts_, "cancelled");
  queue.OnForgotten(image_, "cancelled");
  EXPECT_THAT(sink_.Names(), ElementsAre("queued", "image"));
  EXPECT_FALSE(sink_.spans.back().failed);
}

TEST(TraceContextTest, SamplesThePartOfTheTracesThatIsAskedFor) {
  int sampled = 0;
  for (int i = 0; i < 4096; ++i) sampled += IsSampled(NewTraceId(), 0.25) ? 1 : 0;
  EXPECT_NEAR(sampled, 1024, 200) << "seven standard deviations";
  EXPECT_TRUE(IsSampled("ffffffffffffffffffffffffffffffff", 1));
  EXPECT_FALSE(IsSampled("00000000000000010000000000000000", 0));
  EXPECT_TRUE(IsSampled("ffffffffffffffffff00000000000001", 0.001)) << "only the last 56 bits are random";
}

TEST(TraceContextTest, ReadsTheFlagOfATraceParent) {
  const std::string begin = absl::StrCat("00-", kTraceId, "-", kCaller, "-");
  EXPECT_TRUE(ParseTraceParent(begin + "01")->sampled);
  EXPECT_TRUE(ParseTraceParent(begin + "03")->sampled);
  EXPECT_FALSE(ParseTraceParent(begin + "00")->sampled);
  EXPECT_FALSE(ParseTraceParent(begin + "02")->sampled);
  for (const std::string& bad : {std::string(), begin, begin + "0g", "01" + begin.substr(2) + "01"}) {
    EXPECT_FALSE(ParseTraceParent(bad).has_value()) << bad;
  }
  EXPECT_EQ(TraceParentText(*ParseTraceParent(begin + "01")), begin + "01");
}

}  // namespace
}  // namespace tessera::server
