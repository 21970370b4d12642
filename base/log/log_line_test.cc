#include "base/log/log_line.h"

#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <string>

#include "base/fields/enum_names.h"

namespace tessera::base {
namespace {

TEST(LogLineTest, ALineIsOneObjectWithItsLevelAndFieldsToFilterBy) {
  LogLine line(LogLevel::kWarning, "group emoji-0: restarting",
               {{"group", "emoji-0"}, {"restarts", 2}, {"after", 0.5}});
  line.event = "group";
  EXPECT_EQ(
      LogText(line, absl::UnixEpoch()),
      R"({"time":"1970-01-01T00:00:00+00:00","level":"warning","event":"group","text":"group emoji-0: restarting",)"
      R"("group":"emoji-0","restarts":2,"after":0.5})");
}

TEST(LogLineTest, ASentenceAloneIsALineOfInfo) {
  EXPECT_EQ(LogText("draining", absl::UnixEpoch()),
            R"({"time":"1970-01-01T00:00:00+00:00","level":"info","event":"log","text":"draining"})");
}

TEST(LogLineTest, WhateverBytesItHasItIsOneLineOfJsonInUtf8) {
  const LogLine line(LogLevel::kError, "a\nb\xff\x01", {{"path", "c\n\xfe"}});
  const std::string text = LogText(line, absl::UnixEpoch());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  const boost::json::object object = boost::json::parse(text).as_object();
  EXPECT_EQ(std::string(object.at("text").as_string()).substr(0, 3), "a\nb");
  EXPECT_EQ(std::string(object.at("path").as_string()).substr(0, 2), "c\n");
}

TEST(LogLineTest, EveryLevelHasAName) {
  for (const LogLevel level : {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    EXPECT_EQ(EnumOf<LogLevel>(EnumName(level)), level);
  }
  EXPECT_EQ(EnumNames<LogLevel>().size(), 4u);
}

}  // namespace
}  // namespace tessera::base
