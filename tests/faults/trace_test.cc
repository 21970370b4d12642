// Tests `tessera serve --trace`, which writes the timeline of a real server with fake workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

constexpr int64_t kStepMicroseconds = 5000;
constexpr char kTraceParent[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

struct Span {
  std::string name;
  int64_t start = 0;
  int64_t end = 0;
  boost::json::object args;
};

class TraceTest : public ::testing::Test {
 protected:
  TestServer& Start(const std::string& group) {
    server_ =
        std::make_unique<TestServer>(TestServerOptions{.worker = FAKE_WORKER, .fake_workers = true, .groups = {group}});
    server_->options().script = absl::StrCat("step-time=5 gate=", server_->folder(), "/gate");
    EXPECT_TRUE(server_->Start());
    server_->WaitUntilReady();
    return *server_;
  }

  std::string Text() const {
    std::ifstream file(server_->folder() + "/trace.json", std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  static std::vector<boost::json::object> Events(const std::string& text) {
    std::vector<boost::json::object> events;
    const boost::json::value array = boost::json::parse(text);
    for (const boost::json::value& event : array.as_array()) events.push_back(event.as_object());
    std::stable_sort(events.begin(), events.end(), [](const auto& a, const auto& b) { return Time(a) < Time(b); });
    return events;
  }

  static int64_t Time(const boost::json::object& event) {
    return event.contains("ts") ? event.at("ts").to_number<int64_t>() : 0;
  }

  static bool IsOf(const boost::json::object& event, const std::string& id) {
    return event.contains("id") && event.at("id").as_string() == id.c_str();
  }

  // Returns the stages of an image by start time, beginning with the whole image. Checks that they nest.
  static std::vector<Span> Track(const std::vector<boost::json::object>& events, const std::string& id) {
    std::vector<Span> spans;
    std::vector<size_t> open;
    for (const boost::json::object& event : events) {
      if (!IsOf(event, id)) continue;
      const std::string name(event.at("name").as_string());
      if (event.at("ph") == "b") {
        open.push_back(spans.size());
        spans.push_back({.name = name, .start = Time(event), .args = event.at("args").as_object()});
      } else {
        EXPECT_EQ(spans.at(open.back()).name, name) << "stages must nest";
        spans[open.back()].end = Time(event);
        open.pop_back();
      }
    }
    EXPECT_THAT(open, SizeIs(0)) << id;
    return spans;
  }

  // Spans by the names of process and thread: "group tiny-0/steps".
  static std::map<std::string, std::vector<Span>> Lanes(const std::vector<boost::json::object>& events) {
    std::map<int64_t, std::string> processes;
    std::map<std::pair<int64_t, int64_t>, std::string> threads;
    std::map<std::string, std::vector<Span>> lanes;
    for (const boost::json::object& event : events) {
      const int64_t process = event.at("pid").as_int64(), thread = event.at("tid").as_int64();
      if (event.at("ph") == "M") {
        const std::string name(event.at("args").at("name").as_string());
        if (event.at("name") == "process_name") processes[process] = name;
        if (event.at("name") == "thread_name") threads[{process, thread}] = name;
      } else if (event.at("ph") == "X") {
        lanes[absl::StrCat(processes.at(process), "/", threads.at({process, thread}))].push_back(
            {.name = std::string(event.at("name").as_string()),
             .start = Time(event),
             .end = Time(event) + event.at("dur").to_number<int64_t>(),
             .args = event.at("args").as_object()});
      }
    }
    return lanes;
  }

  static std::vector<std::string> Names(const std::vector<Span>& spans) {
    std::vector<std::string> names;
    for (const Span& span : spans) names.push_back(span.name);
    return names;
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(TraceTest, ShowsEveryStageOfEveryImageAndEveryLaneOfTheGroup) {
  TestServer& server = Start("{model: nowhere, layout: \"cfg=2\"}");
  std::vector<std::string> jobs = {server.Submit("secret words"), server.Submit("secret words")};
  const TestResponse traced =
      HttpTestClient(server.port())
          .Call("POST", "/v1/jobs", R"({"prompt": "secret words", "n": 2})", {{"traceparent", kTraceParent}});
  ASSERT_EQ(traced.status, 202) << traced.body;
  jobs.emplace_back(boost::json::parse(traced.body).at("id").as_string());
  for (const std::string& job : jobs) EXPECT_EQ(server.Ended(job), "done");
  EXPECT_EQ(server.Terminate(), 0);

  EXPECT_THAT(Text(), Not(HasSubstr("secret")));
  const std::vector<boost::json::object> events = Events(Text());
  int64_t steps = 0;
  for (const std::string& id : {jobs[0] + "/0", jobs[1] + "/0", jobs[2] + "/0", jobs[2] + "/1"}) {
    std::vector<Span> stages = Track(events, id);
    const Span whole = stages.at(0);
    stages.erase(stages.begin());
    int64_t sum = 0, last_end = whole.start;
    for (const Span& stage : stages) {
      EXPECT_GE(stage.start, last_end) << id << ": " << stage.name << " begins before the stage before it has ended";
      sum += stage.end - stage.start;
      last_end = stage.end;
      if (stage.name == "step") {
        EXPECT_EQ(stage.args.at("job"), id.substr(0, id.find('/')).c_str());
        ++steps;
      }
    }
    EXPECT_LE(last_end, whole.end);
    EXPECT_GE(sum, 6 * kStepMicroseconds);
    std::erase_if(stages, [](const Span& stage) { return stage.name == "suspended"; });
    EXPECT_THAT(Names(stages), ElementsAre("queued", "encode", "step", "step", "step", "step", "step", "step", "decode",
                                           "image encode", "store"));
    EXPECT_EQ(whole.args.contains("trace_id"), absl::StartsWith(id, jobs[2]));
  }

  std::map<std::string, std::vector<Span>> lanes = Lanes(events);
  for (const auto& [lane, spans] : lanes) {
    for (size_t i = 1; i < spans.size(); ++i) EXPECT_GE(spans[i].start, spans[i - 1].end) << lane;
  }
  int64_t batched = 0;
  for (const Span& step : lanes["group nowhere-0/steps"]) batched += step.args.at("batch").to_number<int64_t>();
  EXPECT_EQ(batched, steps);
  EXPECT_THAT(lanes["group nowhere-0/encode"], SizeIs(4));
  EXPECT_THAT(lanes["group nowhere-0/decode"], SizeIs(4));
  EXPECT_THAT(lanes["group nowhere-0/rank 0"], SizeIs(lanes["group nowhere-0/rank 1"].size()));
  EXPECT_NE(lanes["group nowhere-0/rank 0"].back().args, lanes["group nowhere-0/rank 1"].back().args) << "one process";
  EXPECT_THAT(Names(lanes["group nowhere-0/state"]), Contains("ready"));
}

TEST_F(TraceTest, ShowsAnImageTwiceInTheQueueWhoseWorkerWasKilled) {
  TestServer& server = Start("{model: nowhere}");
  const std::string job = server.Submit("gated apple");
  WaitUntil("running", [&] { return server.StatusOf(job) == "running"; });
  kill(server.Workers().front(), SIGKILL);
  WaitUntil("restarted", [&] { return server.Group().at("restarts").to_number<int>() == 1; });
  server.Write("gate", "");
  EXPECT_EQ(server.Ended(job), "done");
  EXPECT_EQ(server.Terminate(), 0);
  const std::vector<boost::json::object> events = Events(Text());
  const std::vector<std::string> names = Names(Track(events, job + "/0"));
  EXPECT_EQ(std::ranges::count(names, "queued"), 2);
  EXPECT_THAT(Lanes(events)["group nowhere-0/rank 0"], SizeIs(2));
}

TEST_F(TraceTest, OfACancelledImageEndsWhenItsWorkersReleaseIt) {
  TestServer& server = Start("{model: nowhere}");
  const std::string job = server.Submit("gated apple");
  WaitUntil("running", [&] { return server.StatusOf(job) == "running"; });
  EXPECT_EQ(server.Call("DELETE", "/v1/jobs/" + job).status, 200);
  server.Write("gate", "");
  EXPECT_EQ(server.Ended(server.Submit("pear")), "done");
  EXPECT_EQ(server.Terminate(), 0);
  EXPECT_THAT(Text(), HasSubstr(R"("outcome":"cancelled")"));
  EXPECT_EQ(Track(Events(Text()), job + "/0").at(0).name, "image");
}

TEST_F(TraceTest, OfAKilledServerLacksOnlyItsEnd) {
  TestServer& server = Start("{model: nowhere}");
  const std::string job = server.Submit("gated apple");
  WaitUntil("running", [&] { return server.StatusOf(job) == "running"; });
  server.Kill();
  const std::vector<boost::json::object> events = Events(Text() + "]");
  EXPECT_TRUE(std::ranges::any_of(events, [&](const auto& event) { return IsOf(event, job + "/0"); }));
}

}  // namespace
}  // namespace tessera
