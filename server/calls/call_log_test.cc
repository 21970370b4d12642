#include "server/calls/call_log.h"

#include <gtest/gtest.h>

namespace tessera::server {
namespace {

TEST(CallLogTest, AHealthCheckIsALineOnlyWhereItsAnswerChanges) {
  CallLog log;
  const auto level = [&](const std::string& protocol, const std::string& route, int status) {
    return log.LineOf({.protocol = protocol, .method = "GET", .route = route, .status = status}).level;
  };
  for (const char* route : {"/livez", "/readyz", "/metrics", "/probe"}) {
    SCOPED_TRACE(route);
    EXPECT_EQ(level("admin", route, 200), base::LogLevel::kDebug);
    EXPECT_EQ(level("admin", route, 503), base::LogLevel::kWarning);
    EXPECT_EQ(level("admin", route, 503), base::LogLevel::kDebug);
    EXPECT_EQ(level("admin", route, 200), base::LogLevel::kInfo);
    EXPECT_EQ(level("admin", route, 200), base::LogLevel::kDebug);
  }
  // The state of one listener does not affect the other.
  EXPECT_EQ(level("http", "/readyz", 503), base::LogLevel::kWarning);
  EXPECT_EQ(level("admin", "/readyz", 503), base::LogLevel::kWarning);
}

TEST(CallLogTest, EveryOtherCallIsALineWhoseLevelIsThatOfItsAnswer) {
  CallLog log;
  const auto level = [&](const std::string& protocol, int status) {
    return log.LineOf({.protocol = protocol, .method = "POST", .route = "/v1/jobs", .status = status}).level;
  };
  for (int i = 0; i < 2; ++i) {
    for (const int status : {0, 200, 202, 400, 404, 429})
      EXPECT_EQ(level("http", status), base::LogLevel::kInfo) << status;
    EXPECT_EQ(level("http", 500), base::LogLevel::kError);
    for (const int status : {503, 504}) EXPECT_EQ(level("http", status), base::LogLevel::kWarning) << status;
    for (const int status : {0, 1, 3, 5, 8}) EXPECT_EQ(level("grpc", status), base::LogLevel::kInfo) << status;
    for (const int status : {4, 14}) EXPECT_EQ(level("grpc", status), base::LogLevel::kWarning) << status;
    for (const int status : {2, 13, 15}) EXPECT_EQ(level("grpc", status), base::LogLevel::kError) << status;
  }
}

TEST(CallLogTest, ALineHasTheFieldsOfItsCall) {
  CallLog log;
  const base::LogLine line = log.LineOf({.protocol = "grpc",
                                         .request_id = "req_1",
                                         .route = "Submit",
                                         .status = 3,
                                         .error_code = "invalid_value",
                                         .tenant = "farm",
                                         .peer = "10.0.0.1",
                                         .job = "job_1",
                                         .duration = absl::Milliseconds(1500),
                                         .request_bytes = 7});
  EXPECT_EQ(
      base::LogText(line, absl::UnixEpoch()),
      R"({"time":"1970-01-01T00:00:00+00:00","level":"info","event":"call","protocol":"grpc","request_id":"req_1",)"
      R"("method":"","route":"Submit","status":3,"error":"invalid_value","tenant":"farm","peer":"10.0.0.1",)"
      R"("job":"job_1","traceparent":"","seconds":1.5,"request_bytes":7,"response_bytes":0})");
}

}  // namespace
}  // namespace tessera::server
