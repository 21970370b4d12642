// Tests the usage of keys that a real server with fake workers counts, and `tessera usage`, which shows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/calls/api_keys.h"
#include "tests/faults/test_server.h"
#include "tests/front/command_line_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr char kTwoRanks[] = "{model: nowhere, layout: \"cfg=2\"}";

class UsageTest : public CommandLineTest {
 protected:
  explicit UsageTest(const std::string& step_milliseconds = "5")
      : server_({.worker = FAKE_WORKER,
                 .fake_workers = true,
                 .groups = {kTwoRanks},
                 .settings = "keys_file: keys.txt\nkey_metrics: true\n",
                 .admin = "{port: 0}"}) {
    for (std::string* secret : {&alice_, &bob_}) {
      const auto key = server::NewApiKey(secret == &alice_ ? "alice" : "bob");
      *secret = key->secret;
      absl::StrAppend(&keys_, key->line, "\n");
    }
    server_.Write("keys.txt", keys_);
    server_.options().settings = absl::StrCat("keys_file: ", server_.folder(), "/keys.txt\nkey_metrics: true\n");
    server_.options().script = absl::StrCat("step-time=", step_milliseconds, " gate=", server_.folder(), "/gate");
    EXPECT_TRUE(server_.Start());
    server_.WaitUntilReady();
  }

  TestResponse Call(const std::string& secret, const std::string& method, const std::string& target,
                    const std::string& body = "") {
    return HttpTestClient(server_.port()).Call(method, target, body, {{"Authorization", "Bearer " + secret}});
  }

  std::string Submit(const std::string& secret, const std::string& body) {
    const TestResponse accepted = Call(secret, "POST", "/v1/jobs", body);
    EXPECT_EQ(accepted.status, 202) << accepted.body;
    return std::string(boost::json::parse(accepted.body).at("id").as_string());
  }

  std::string StateOf(const std::string& secret, const std::string& job) {
    const TestResponse answer = Call(secret, "GET", "/v1/jobs/" + job);
    return answer.status == 200 ? std::string(boost::json::parse(answer.body).at("status").as_string()) : "";
  }
  void WaitForEnd(const std::string& secret, const std::string& job, const std::string& state) {
    WaitUntil(absl::StrCat(job, " is ", state), [&] { return StateOf(secret, job) == state; });
  }

  // Returns the rows of an answer without their days, a row for each key: a day may end during the test.
  static boost::json::array ByKey(const TestResponse& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::map<std::string, boost::json::object> keys;
    const boost::json::value parsed = boost::json::parse(answer.body);
    for (const boost::json::value& row : parsed.at("data").as_array()) {
      boost::json::object& sum = keys[std::string(row.at("key").as_string())];
      if (sum.empty()) {
        sum = row.as_object();
        sum.erase("day");
        continue;
      }
      EXPECT_EQ(sum.at("model"), row.at("model"));
      sum["images"] = sum["images"].as_int64() + row.at("images").as_int64();
      sum["steps"] = sum["steps"].as_int64() + row.at("steps").as_int64();
      sum["device_seconds"] = sum["device_seconds"].as_double() + row.at("device_seconds").as_double();
    }
    boost::json::array rows;
    for (auto& [key, sum] : keys) rows.push_back(std::move(sum));
    return rows;
  }

  // Returns the rows of the admin listener.
  boost::json::array Rows() const { return ByKey(HttpTestClient(server_.admin_port()).Call("GET", "/v1/usage")); }

  std::string keys_, alice_, bob_;
  TestServer server_;
};

TEST_F(UsageTest, IsCountedByKeyAndSurvivesARestart) {
  for (const std::string& secret : {alice_, alice_, bob_}) {
    WaitForEnd(secret, Submit(secret, R"({"prompt": "apple", "num_inference_steps": 5, "n": 2})"), "done");
  }
  const boost::json::array rows = Rows();
  ASSERT_THAT(rows, SizeIs(2));
  EXPECT_EQ(rows[0].at("key"), "alice");
  EXPECT_EQ(rows[0].at("model"), "nowhere");
  EXPECT_EQ(rows[0].at("images"), 4);
  EXPECT_EQ(rows[0].at("steps"), 20);
  EXPECT_EQ(rows[1].at("key"), "bob");
  EXPECT_EQ(rows[1].at("images"), 2);
  // A batch's time is divided among its images, so at least one of two ranks' steps of 5 ms each is counted for each
  // five steps of the group.
  EXPECT_GE(rows[1].at("device_seconds").as_double(), 2 * 5 * 0.005);

  const boost::json::array own = ByKey(Call(bob_, "GET", "/v1/usage"));
  ASSERT_THAT(own, SizeIs(1));
  EXPECT_EQ(own[0], rows[1]) << "a key sees its usage only";
  EXPECT_EQ(Call(bob_, "GET", "/v1/usage?key=alice").status, 400);
  EXPECT_EQ(HttpTestClient(server_.port()).Call("GET", "/v1/usage").status, 401);

  // An image is counted there after its job is done.
  WaitUntil("alice's images in the metrics", [&] {
    return absl::StrContains(HttpTestClient(server_.admin_port()).Call("GET", "/metrics").body,
                             "tessera_usage_images_total{key=\"alice\",model=\"nowhere\"} 4\n");
  });

  server_.Kill();
  ASSERT_TRUE(server_.Start());
  EXPECT_EQ(Rows(), rows);

  const std::string url = absl::StrCat("http://127.0.0.1:", server_.admin_port());
  const Result csv = Run({"usage", "--server", url, "--key", "bob", "--format", "csv"});
  EXPECT_EQ(csv.exit_code, 0) << csv.errors;
  const std::vector<std::string> lines = absl::StrSplit(csv.output, '\n');
  EXPECT_EQ(lines[0], "day,key,model,images,steps,device_seconds");
  int64_t images = 0;
  for (size_t i = 1; i + 1 < lines.size(); ++i) {
    const std::vector<std::string> fields = absl::StrSplit(lines[i], ',');
    ASSERT_THAT(fields, SizeIs(6)) << lines[i];
    EXPECT_EQ(fields[1], "bob");
    EXPECT_EQ(fields[2], "nowhere");
    images += std::stoll(fields[3]);
  }
  EXPECT_EQ(images, 2) << csv.output;
  const Result table = Run({"usage", "--server", url});
  EXPECT_THAT(table.output, AllOf(HasSubstr("alice"), HasSubstr("bob"), HasSubstr("total")));
  const Result json = Run({"usage", "--server", url, "--until", "2020-01-31", "--format", "json"});
  EXPECT_EQ(json.output, "");
  const Result wrong = Run({"usage", "--server", url, "--since", "yesterday"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.errors, HasSubstr("it must be a day such as"));
  EXPECT_EQ(Run({"usage", "--server", url, "--format", "xml"}).exit_code, 2);
  EXPECT_EQ(server_.Terminate(), 0);
}

TEST_F(UsageTest, OfAnImageThatIsMadeAgainIsCountedOnce) {
  const std::string job = Submit(alice_, R"({"prompt": "gated apple", "num_inference_steps": 5})");
  WaitForEnd(alice_, job, "running");
  kill(server_.Workers().front(), SIGKILL);
  WaitUntil("restarted", [&] { return server_.Workers().size() == 2; });
  server_.Write("gate", "");
  WaitForEnd(alice_, job, "done");
  const boost::json::array rows = Rows();
  ASSERT_THAT(rows, SizeIs(1));
  EXPECT_EQ(rows[0].at("images"), 1);
  EXPECT_EQ(rows[0].at("steps"), 5);
  EXPECT_EQ(server_.Terminate(), 0);
}

// An image of 500 steps takes longer than the test.
class LongUsageTest : public UsageTest {
 protected:
  LongUsageTest() : UsageTest("100") {}
};

TEST_F(LongUsageTest, OfAnImageThatIsCancelledOrFailsHasTheStepsThatRan) {
  const std::string cancelled = Submit(alice_, R"({"prompt": "apple", "num_inference_steps": 500})");
  WaitUntil("it has made steps", [&] {
    return boost::json::parse(Call(alice_, "GET", "/v1/jobs/" + cancelled).body).at("steps_done").as_int64() >= 2;
  });
  EXPECT_EQ(Call(alice_, "DELETE", "/v1/jobs/" + cancelled).status, 200);
  const std::string failed = Submit(bob_, R"({"prompt": "[fail]", "num_inference_steps": 5})");
  WaitForEnd(bob_, failed, "failed");
  WaitUntil("both are counted", [&] { return Rows().size() == 2; });
  const boost::json::array rows = Rows();
  EXPECT_EQ(rows[0].at("images"), 0);
  EXPECT_GE(rows[0].at("steps").as_int64(), 2);
  EXPECT_LT(rows[0].at("steps").as_int64(), 500);
  EXPECT_EQ(rows[1].at("images"), 0);
  EXPECT_LT(rows[1].at("steps").as_int64(), 5);
  EXPECT_EQ(server_.Terminate(), 0);
}

}  // namespace
}  // namespace tessera
