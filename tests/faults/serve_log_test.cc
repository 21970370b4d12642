// Tests what `tessera serve` writes to standard error for operators.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "base/files/file_descriptor.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using boost::json::object;
using ::testing::HasSubstr;

std::string Text(const object& line, const char* name) {
  const boost::json::value* value = line.if_contains(name);
  return value != nullptr && value->is_string() ? std::string(value->as_string()) : "";
}

class ServeLogTest : public ::testing::Test {
 protected:
  // Runs a server through health checks, a call, a job that fails and, if `deadly`, a job that kills its workers.
  // Returns the log lines.
  std::vector<object> LinesOfARun(const std::vector<std::string>& arguments, bool deadly) {
    TestServer server({.worker = FAKE_WORKER,
                       .script = "step-time=0",
                       .fake_workers = true,
                       .groups = {"{model: nowhere}"},
                       .admin = "{port: 0}",
                       .arguments = arguments});
    EXPECT_TRUE(server.Start());
    server.WaitUntilReady();
    for (int i = 0; i < 5; ++i) {
      for (const char* path : {"/livez", "/readyz", "/metrics"}) {
        EXPECT_EQ(HttpTestClient(server.admin_port()).Call("GET", path).status, 200);
      }
      EXPECT_EQ(server.Call("GET", "/livez").status, 200);
    }
    EXPECT_EQ(server.Call("GET", "/v1/models").status, 200);
    failed_ = server.Submit("[fail]");
    EXPECT_EQ(server.Ended(failed_), "failed");
    if (deadly) {
      deadly_ = server.Submit("[die]");
      EXPECT_EQ(server.Ended(deadly_), "failed");
    }
    server.process().Signal(SIGTERM);
    EXPECT_EQ(server.process().Wait(), 0);
    std::vector<object> lines;
    for (const absl::string_view line : absl::StrSplit(server.process().errors(), '\n', absl::SkipEmpty())) {
      boost::json::error_code error;
      const boost::json::value value = boost::json::parse(std::string(line), error);
      // Workers print a message of another form when a job kills them.
      if (error || !value.is_object()) continue;
      lines.push_back(value.as_object());
    }
    return lines;
  }

  static size_t Count(const std::vector<object>& lines, const char* name, const std::string& value) {
    return static_cast<size_t>(
        std::ranges::count_if(lines, [&](const object& line) { return Text(line, name) == value; }));
  }

  std::string failed_, deadly_;
};

TEST_F(ServeLogTest, EveryLineHasALevelAndAFailedJobLeavesOneWithItsReason) {
  const std::vector<object> lines = LinesOfARun({}, /*deadly=*/true);
  ASSERT_FALSE(lines.empty());
  for (const object& line : lines) {
    EXPECT_THAT(Text(line, "level"), ::testing::AnyOf("debug", "info", "warning", "error"));
    EXPECT_NE(Text(line, "time"), "");
    EXPECT_NE(Text(line, "event"), "");
  }
  const auto failure_of = [&](const std::string& job) {
    for (const object& line : lines) {
      if (Text(line, "event") == "image_failed" && Text(line, "job") == job) return line;
    }
    return object();
  };
  const object failed = failure_of(failed_), deadly = failure_of(deadly_);
  EXPECT_EQ(Text(failed, "outcome"), "failed");
  EXPECT_THAT(Text(failed, "reason"), HasSubstr("fails as its script says"));
  EXPECT_EQ(Text(failed, "model"), "nowhere");
  EXPECT_EQ(Text(failed, "group"), "nowhere-0");
  EXPECT_EQ(Text(failed, "tenant"), "anonymous");
  EXPECT_EQ(Text(deadly, "outcome"), "quarantined");
  EXPECT_EQ(Text(deadly, "level"), "error");
  EXPECT_GE(Count(lines, "group", "nowhere-0"), 3u);
  EXPECT_EQ(Count(lines, "route", "/v1/models"), 1u);
  // Health checks are not logged, except for /readyz answers whose status changes while the server becomes ready.
  EXPECT_EQ(Count(lines, "route", "/livez"), 0u);
  EXPECT_EQ(Count(lines, "route", "/metrics"), 0u);
  EXPECT_LE(Count(lines, "route", "/readyz"), 3u);
}

TEST_F(ServeLogTest, TheLevelSaysWhichLinesThereAre) {
  const std::vector<object> all = LinesOfARun({"--log-level", "debug"}, /*deadly=*/false);
  EXPECT_EQ(Count(all, "route", "/metrics"), 5u);
  EXPECT_GE(Count(all, "route", "/livez"), 10u);
  const std::vector<object> grave = LinesOfARun({"--log-level", "warning"}, /*deadly=*/false);
  EXPECT_EQ(Count(grave, "job", failed_), 1u);
  EXPECT_EQ(Count(grave, "level", "info") + Count(grave, "level", "debug"), 0u);
}

class StalledLogTest : public ::testing::Test {
 protected:
  StalledLogTest() {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    reader_ = base::FileDescriptor(ends[0]);
    pipe_ = base::FileDescriptor(ends[1]);
    const auto size = static_cast<size_t>(fcntl(pipe_.get(), F_SETPIPE_SZ, 4096));
    const std::string fill(size, '\n');
    EXPECT_EQ(write(pipe_.get(), fill.data(), fill.size()), static_cast<ssize_t>(size));
    server_ = std::make_unique<TestServer>(TestServerOptions{.worker = FAKE_WORKER,
                                                             .script = "step-time=0",
                                                             .fake_workers = true,
                                                             .groups = {"{model: nowhere}"},
                                                             .admin = "{port: 0}",
                                                             .errors = pipe_.get()});
    EXPECT_TRUE(server_->Start());
  }

  int64_t Dropped() {
    const std::string text = HttpTestClient(server_->admin_port()).Call("GET", "/metrics").body;
    int64_t dropped = -1;
    const size_t at = text.find("\ntessera_log_lines_dropped_total ");
    if (at != std::string::npos) std::sscanf(text.c_str() + at + 1, "%*s %ld", &dropped);
    return dropped;
  }

  // Calls the server, which writes one line per call, until lines are dropped.
  void CallUntilLinesAreDropped() {
    HttpTestClient client(server_->port());
    for (int i = 0; i < 20 && Dropped() == 0; ++i) {
      for (int call = 0; call < 250; ++call) ASSERT_EQ(client.Call("GET", "/v1/models").status, 200);
    }
    EXPECT_GT(Dropped(), 0);
  }

  base::FileDescriptor reader_, pipe_;
  std::unique_ptr<TestServer> server_;
};

TEST_F(StalledLogTest, AServerWhoseLogIsNotReadServesAndEndsOnSigterm) {
  server_->WaitUntilReady();
  CallUntilLinesAreDropped();
  EXPECT_EQ(server_->Ended(server_->Submit("a pear")), "done");
  EXPECT_EQ(server_->Terminate(), 0);
}

TEST_F(StalledLogTest, OneLineReportsTheDroppedLinesOnceTheLogIsReadAgain) {
  server_->WaitUntilReady();
  CallUntilLinesAreDropped();
  std::string text;
  char buffer[4096];
  while (text.find("log_lines_dropped") == std::string::npos) {
    const ssize_t got = read(reader_.get(), buffer, sizeof(buffer));
    ASSERT_GT(got, 0);
    text.append(buffer, static_cast<size_t>(got));
  }
  EXPECT_EQ(server_->Terminate(), 0);
}

}  // namespace
}  // namespace tessera
