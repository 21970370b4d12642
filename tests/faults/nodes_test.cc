// Groups over several hosts: a server and its nodes as processes, joined by mutual TLS.
#include <gmock/gmock.h>
#include <signal.h>

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "server/image/image_file.h"
#include "tests/faults/faulty_proxy.h"
#include "tests/faults/kill_oracle.h"
#include "tests/faults/node_cluster.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kFast[] = "beat: 100ms, lost_after: 2s, join_wait: 1s";
constexpr char kOverTwo[] = "devices: [node-a/cpu:0, node-b/cpu:0]";

#ifdef HAS_REAL_WORKER
TEST(NodesTest, PicturesOfGroupsOverTwoNodesAreThoseOfTheSameLayoutOnOneHost) {
  const std::string model = EMBEDDED_MODEL;
  const std::vector<std::string> names = {"cfg", "pipe", "ulysses"};
  std::vector<std::string> groups;
  for (const std::string& name : names) {
    const std::string begin = absl::StrCat("{model: ", model, ", threads: 2, layout: \"", name, "=2\", name: ", name);
    groups.push_back(absl::StrCat(begin, "-here}"));
    groups.push_back(absl::StrCat(begin, ", ", kOverTwo, "}"));
  }
  NodeCluster cluster({.groups = groups});
  ASSERT_TRUE(cluster.Start());
  cluster.Run("node-a");
  cluster.Run("node-b");
  cluster.server().WaitUntilReady();
  const auto picture = [&](const std::string& name) {
    const std::string job = cluster.server().Submit("red apple", absl::StrCat(R"(, "model": ")", name, R"(")"));
    EXPECT_EQ(cluster.server().Ended(job), "done");
    // Without the parameters in it, which name the group's model.
    return server::DecodeImage(cluster.server().ImageBytes(cluster.server().Get(job)))->image.rgb;
  };
  for (const std::string& name : names) EXPECT_TRUE(picture(name) == picture(name + "-here")) << name;
  EXPECT_EQ(cluster.Workers("node-a").size(), names.size());
  EXPECT_EQ(cluster.Workers("node-b").size(), names.size());
  EXPECT_EQ(cluster.server().Terminate(), 0);
}
#endif

// With fake workers, whose jobs take a while.
class NodeFaultsTest : public ::testing::Test {
 protected:
  NodeFaultsTest()
      : cluster_({.groups = {absl::StrCat("{model: TINY, layout: cfg=2, ", kOverTwo, "}")},
                  .script = "any-model step-time=20 step2-of-[fail]=error",
                  .worker = FAKE_WORKER,
                  .nodes = kFast}) {}

  void Start() {
    ASSERT_TRUE(cluster_.Start());
    for (const char* name : {"node-a", "node-b"}) {
      cluster_.Run(name);
      ASSERT_TRUE(cluster_.HasJoined(name));
    }
    cluster_.server().WaitUntilReady();
    ASSERT_NO_FATAL_FAILURE(oracle_.Learn(cluster_.server()));
  }

  // As many jobs as a few seconds of work.
  void SubmitAll() {
    for (int round = 0; round < 3; ++round) {
      for (int kind = 0; kind < KillOracle::kKinds; ++kind) {
        const TestResponse response = cluster_.server().Call("POST", "/v1/jobs", KillOracle::Body(kind));
        ASSERT_EQ(response.status, 202) << response.body;
        oracle_.jobs.push_back(
            {.id = std::string(boost::json::parse(response.body).at("id").as_string()), .kind = kind});
      }
    }
    WaitUntil("a job that runs", [&] {
      return std::ranges::any_of(oracle_.jobs, [&](const KillOracle::Acknowledged& job) {
        return cluster_.server().StatusOf(job.id) == "running";
      });
    });
  }

  void ExpectNothingLost() {
    const KillOracle::Tally tally = oracle_.Judge(cluster_.server());
    const std::string text = tally.Text(oracle_.jobs.size());
    std::printf("%s\n", text.c_str());
    EXPECT_THAT(text, HasSubstr("lost 0 duplicated 0 torn 0"));
    EXPECT_EQ(tally.done, static_cast<int>(oracle_.jobs.size()));
    EXPECT_EQ(cluster_.server().Terminate(), 0);
  }

  std::string LogOfServer() { return cluster_.server().process().errors(); }

  NodeCluster cluster_;
  KillOracle oracle_;
};

TEST_F(NodeFaultsTest, NoJobIsLostWhenAllOfANodeIsKilledAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(SubmitAll());
  cluster_.node("node-b").Signal(SIGKILL);
  cluster_.node("node-b").Wait();
  WaitUntil("the end of its workers", [&] { return cluster_.Workers("node-b").empty(); });
  WaitUntil("the loss",
            [&] { return absl::StrContains(LogOfServer(), "rank 1 of 2 on node-b is lost with its node"); });
  cluster_.Run("node-b");
  ExpectNothingLost();
}

TEST_F(NodeFaultsTest, ARankThatDiesEndsItsGroupAndNoNode) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(SubmitAll());
  const std::vector<pid_t> workers = cluster_.Workers("node-a");
  ASSERT_EQ(workers.size(), 1u);
  kill(workers[0], SIGKILL);
  ASSERT_TRUE(WaitUntilGone(workers[0]));
  ExpectNothingLost();
  EXPECT_EQ(cluster_.node("node-a").output(), "{\"event\":\"joined\",\"node\":\"node-a\"}\n") << "it joined once";
}

TEST_F(NodeFaultsTest, NoJobIsLostWhenANetworkDelaysStallsOrCuts) {
  ASSERT_TRUE(cluster_.Start());
  FaultyProxy to_a("127.0.0.2", cluster_.port()), to_b("127.0.0.3", cluster_.port());
  cluster_.Run("node-a", {.join = absl::StrCat("127.0.0.2:", to_a.port())});
  cluster_.Run("node-b", {.join = absl::StrCat("127.0.0.3:", to_b.port())});
  cluster_.server().WaitUntilReady();
  ASSERT_NO_FATAL_FAILURE(oracle_.Learn(cluster_.server()));
  ASSERT_NO_FATAL_FAILURE(SubmitAll());
  to_a.Delay(std::chrono::milliseconds(20));
  to_b.Cut();
  WaitUntil("the loss of node-b", [&] { return absl::StrContains(LogOfServer(), "node node-b: is lost"); });
  cluster_.server().WaitUntilReady();
  to_a.Stall();
  WaitUntil("the loss of node-a",
            [&] { return absl::StrContains(LogOfServer(), "node node-a: is lost: nothing was heard of it for 2s"); });
  to_a.Pass();
  ExpectNothingLost();
}

class NodeRefusalsTest : public ::testing::Test {
 protected:
  NodeRefusalsTest()
      : cluster_({.groups = {"{model: TINY, layout: serial}"},
                  .script = "any-model step-time=1",
                  .worker = FAKE_WORKER,
                  .nodes = kFast}) {}

  // The server has said so in its log; nobody has told any internals.
  void ExpectRefused(const std::string& errors, const std::string& why) {
    EXPECT_THAT(errors, HasSubstr(why));
    EXPECT_THAT(errors, Not(HasSubstr("ssl_")));
    EXPECT_THAT(errors, Not(HasSubstr("ipv4:")));
    WaitUntil(why, [&] { return absl::StrContains(cluster_.server().process().errors(), why); });
  }

  NodeCluster cluster_;
};

TEST_F(NodeRefusalsTest, AMissingOrWrongTokenAndAWorkerOfAnotherVersion) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.WriteFiles("node-a", cluster_.authority());
  cluster_.WriteToken("node-a", "another token of the same size");
  ExpectRefused(cluster_.ErrorsOf("node-a", {}), "its token is not the server's");
  cluster_.WriteToken("node-a", "short");
  EXPECT_THAT(cluster_.ErrorsOf("node-a", {}), HasSubstr("valid values have 16 or more"));
  ExpectRefused(cluster_.ErrorsOf("node-b", {.script = "version=0.0.9"}), "install the same version on both");
}

TEST_F(NodeRefusalsTest, NamesThatCannotBeResolvedAndHostsThatDoNotAnswer) {
  ASSERT_TRUE(cluster_.Start());
  EXPECT_THAT(cluster_.ErrorsOf("node-a", {.join = "nowhere.invalid:1", .join_timeout = "1"}),
              HasSubstr("the name in nowhere.invalid:1 cannot be resolved"));
  EXPECT_THAT(cluster_.ErrorsOf("node-a", {.join = "127.0.0.1:1", .join_timeout = "1"}),
              HasSubstr("no controller answers at 127.0.0.1:1"));
}

TEST_F(NodeRefusalsTest, AnAuthorityThatIsNotTheServers) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.WriteFiles("node-a", TestAuthority("another authority"));
  EXPECT_THAT(cluster_.ErrorsOf("node-a", {.join_timeout = "1"}), HasSubstr("has no valid certificate"));
}

TEST_F(NodeRefusalsTest, CertificatesAndTokensAreReplacedWithoutARestart) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.Run("node-a");
  ASSERT_TRUE(cluster_.HasJoined("node-a"));
  const TestAuthority fresh("the next authority");
  cluster_.WriteFiles("", fresh);
  cluster_.WriteToken("", "the next token, of other length");
  cluster_.WriteFiles("node-b", fresh);
  cluster_.WriteToken("node-b", "the next token, of other length");
  cluster_.Run("node-b");  // tries until the listener has read its files
  EXPECT_TRUE(cluster_.HasJoined("node-b"));
}

}  // namespace
}  // namespace tessera
