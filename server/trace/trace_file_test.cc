#include "server/trace/trace_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "server/trace/group_trace.h"
#include "server/trace/queue_trace.h"
#include "tests/support/test_folder.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class TraceFileTest : public ::testing::Test {
 protected:
  std::unique_ptr<TraceFile> Create(size_t max_bytes = kMaxTraceBytes) {
    absl::StatusOr<std::unique_ptr<TraceFile>> trace = TraceFile::Create(
        path(), [this](const std::string& text) { log_.push_back(text); }, max_bytes);
    EXPECT_TRUE(trace.ok()) << trace.status();
    return *std::move(trace);
  }

  std::string path() const { return folder_ / "trace.json"; }
  std::string Read(const std::string& more = "") const {
    std::ifstream file(path() + more, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  // Returns the names of the events of this phase in the order of the file.
  std::vector<std::string> Names(const char* phase) const {
    std::vector<std::string> names;
    const boost::json::value events = boost::json::parse(Read());
    for (const boost::json::value& event : events.as_array()) {
      if (event.at("ph") == phase) names.emplace_back(event.at("name").as_string());
    }
    return names;
  }

  TestFolder folder_;
  std::vector<std::string> log_;
  const TracedImage image_ = {
      .job = "job-1", .index = 2, .trace_parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"};
};

TEST_F(TraceFileTest, IsAJsonArrayOfEvents) {
  {
    const std::unique_ptr<TraceFile> trace = Create();
    const TraceLane lane = {.process = trace->AddProcess("a \"group\""), .thread = 3};
    const absl::Time now = trace->Now();
    trace->Span(lane, {.name = "step", .start = now, .end = now + absl::Microseconds(7), .args = {{"batch", 2}}});
  }
  const boost::json::value events = boost::json::parse(Read());
  ASSERT_THAT(events.as_array(), SizeIs(3));
  EXPECT_EQ(events.at(1).at("args").at("name"), "a \"group\"");
  EXPECT_EQ(events.at(2).at("dur"), 7);
  EXPECT_EQ(events.at(2).at("pid"), events.at(1).at("pid"));
  EXPECT_EQ(events.at(2).at("args").at("batch"), 2);
}

TEST_F(TraceFileTest, LacksNothingButItsEndWhenTheProcessIsKilled) {
  const std::unique_ptr<TraceFile> trace = Create();
  trace->Begin(image_, "queued", trace->Now());
  const boost::json::value events = boost::json::parse(Read() + "]");
  EXPECT_EQ(events.at(1).at("id"), "job-1/2");
  EXPECT_EQ(events.at(1).at("args").at("trace_id"), "0af7651916cd43dd8448eb211c80319c");
}

TEST_F(TraceFileTest, IsReadByItsOwnerAlone) {
  const std::unique_ptr<TraceFile> trace = Create();
  struct stat about;
  ASSERT_EQ(stat(path().c_str(), &about), 0);
  EXPECT_EQ(about.st_mode & 077, 0u);
}

TEST_F(TraceFileTest, BeginsAgainAtItsBoundAndKeepsTheFileBefore) {
  constexpr size_t kBound = 2000;
  int written = 0;
  {
    const std::unique_ptr<TraceFile> trace = Create(kBound);
    const int64_t process = trace->AddProcess("tiny");
    for (; !std::filesystem::exists(path() + ".1") && written < 100; ++written) {
      trace->Span({.process = process}, {.name = "step", .start = trace->Now(), .end = trace->Now()});
    }
    EXPECT_LE(Read(".1").size(), kBound);
  }
  const boost::json::value before = boost::json::parse(Read(".1")), after = boost::json::parse(Read());
  EXPECT_EQ(before.as_array().size() + after.as_array().size(), static_cast<size_t>(written) + 4);
  EXPECT_EQ(after.at(1).at("args").at("name"), "tiny") << "names are told again";
}

TEST_F(TraceFileTest, ThatCannotBeMadeIsAnError) {
  const auto trace = TraceFile::Create("/proc/absent/trace.json", [](const std::string&) {});
  EXPECT_THAT(std::string(trace.status().message()), HasSubstr("No such file"));
}

TEST_F(TraceFileTest, OfAnImageThatIsSuspendedShowsThatBetweenItsSteps) {
  {
    const std::unique_ptr<TraceFile> trace = Create();
    GroupTrace group(trace.get(), "tiny", /*ranks=*/1);
    const auto step = [&](absl::Span<const uint64_t> tasks) {
      group.OnStepped(tasks, group.Now(), absl::InfiniteFuture(), 1);
    };
    group.OnEncoded(1, image_, group.Now(), {});
    step({1});
    group.OnSuspended({1});
    group.OnSuspended({1});
    group.OnEncoded(2, {.job = "job-2"}, group.Now(), {});
    step({2});
    step({1, 2});
    group.OnEnded(1);
  }
  EXPECT_THAT(Names("b"), ElementsAre("encode", "step", "encode", "step", "suspended", "step", "step"));
  EXPECT_EQ(Names("b").size(), Names("e").size());
}

TEST_F(TraceFileTest, OfAnImageThatIsGivenBackShowsThatItWaitsAgain) {
  {
    const std::unique_ptr<TraceFile> trace = Create();
    QueueTrace queue(trace.get());
    queue.OnQueued(image_, trace->Now() + absl::Hours(1));
    queue.OnClaimed(image_);
    queue.OnQueuedAgain(image_);
    queue.OnForgotten(image_, "cancelled");
  }
  EXPECT_THAT(Names("b"), ElementsAre("image", "queued", "queued"));
  EXPECT_THAT(Names("e"), ElementsAre("queued", "queued", "image"));
}

TEST_F(TraceFileTest, IsNotNeeded) {
  QueueTrace queue(nullptr);
  queue.OnQueued(image_, absl::Now());
  queue.OnForgotten(image_, "done");
  GroupTrace group(nullptr, "tiny", 1);
  group.OnState("ready");
  group.OnEncoded(1, image_, group.Now(), {});
  group.OnStepped({1}, group.Now(), group.Now(), 1);
  group.OnEnded(1);
  EXPECT_THAT(log_, IsEmpty());
}

}  // namespace
}  // namespace tessera::server
