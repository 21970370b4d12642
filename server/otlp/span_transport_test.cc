#include "server/otlp/span_transport.h"

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

TEST(SpanReplyTest, IsSentAgainOnlyForTheStatusesThatTheProtocolNames) {
  for (const int status : {0, 429, 502, 503, 504}) EXPECT_TRUE(MayRetry({.status = status})) << status;
  for (const int status : {200, 301, 307, 400, 401, 404, 500}) EXPECT_FALSE(MayRetry({.status = status})) << status;
}

TEST(SpanReplyTest, CountsWhatTheReceiverRefused) {
  EXPECT_EQ(RejectedSpans(R"({"partialSuccess": {"rejectedSpans": "3", "errorMessage": "too old"}})"), 3);
  EXPECT_EQ(RejectedSpans(R"({"partialSuccess": {"rejectedSpans": 3}})"), 3);
  for (const char* none :
       {"", "{}", "garbage", R"({"partialSuccess": null})", R"({"partialSuccess": {}})",
        R"({"partialSuccess": {"rejectedSpans": "x"}})", R"({"partialSuccess": {"rejectedSpans": -1}})", R"([1])"}) {
    EXPECT_EQ(RejectedSpans(none), 0) << none;
  }
}

TEST(SpanReplyTest, SaysWhenToTryAgainInSecondsOrAsADate) {
  const absl::Time now = absl::FromCivil(absl::CivilSecond(2026, 11, 29, 8, 0, 0), absl::UTCTimeZone());
  EXPECT_EQ(ParseRetryAfter(" 7 ", now), absl::Seconds(7));
  EXPECT_EQ(ParseRetryAfter("Sun, 29 Nov 2026 08:01:00 GMT", now), absl::Minutes(1));
  EXPECT_EQ(ParseRetryAfter("Sun, 29 Nov 2026 07:00:00 GMT", now), absl::ZeroDuration());
  for (const char* bad : {"", "-1", "soon", "1.5", "99999999999999999999"}) {
    EXPECT_EQ(ParseRetryAfter(bad, now), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace tessera::server
