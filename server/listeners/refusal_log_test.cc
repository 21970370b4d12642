#include "server/listeners/refusal_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tessera::server {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

TEST(RefusalLogTest, SaysHowManyConnectionsHadNoDescriptorOnceAMinute) {
  std::vector<std::string> lines;
  RefusalLog log("http", [&](const base::LogLine& line) { lines.push_back(line.text); });
  log.Refused(absl::Seconds(5), 64);
  for (int i = 0; i < 100; ++i) log.Refused(absl::Seconds(6), 64);
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_THAT(lines[0], AllOf(HasSubstr("listener http"), HasSubstr("1 connection:"), HasSubstr("at most 64"),
                              HasSubstr("RLIMIT_NOFILE")));
  log.Refused(absl::Seconds(66), 64);
  ASSERT_THAT(lines, SizeIs(2));
  EXPECT_THAT(lines[1], HasSubstr("101 connections:"));
}

}  // namespace
}  // namespace tessera::server
