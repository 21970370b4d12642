// Tests groups across several hosts: a server and its nodes as separate processes, connected with mutual TLS.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/time/steady_time.h"
#include "server/image/image_file.h"
#include "server/nodes/node_files.h"
#include "tessera/internal/node.grpc.pb.h"
#include "tests/faults/faulty_proxy.h"
#include "tests/faults/kill_oracle.h"
#include "tests/faults/node_cluster.h"
#include "tests/support/fault_runs.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kDeviceExitCode = 4;
constexpr char kFast[] = "beat: 100ms, lost_after: 2s, join_wait: 1s";
constexpr char kOverTwo[] = "devices: [node-a/cpu:0, node-b/cpu:0]";

#ifdef HAS_REAL_WORKER
struct GroupOverHosts {
  std::string name, layout, devices;
};

const GroupOverHosts kTwoHosts[] = {
    {"cfg", "cfg=2", kOverTwo}, {"pipe", "pipe=2", kOverTwo}, {"ulysses", "ulysses=2", kOverTwo}};

// Each image of a group across hosts is byte-identical to that of a group with the same layout on the server's host.
void ExpectPicturesOfOneHost(const NetworkHosts* hosts, absl::Span<const GroupOverHosts> groups_over_hosts) {
  std::vector<std::string> groups;
  for (const auto& [name, layout, devices] : groups_over_hosts) {
    const std::string begin =
        absl::StrCat("{model: ", EMBEDDED_MODEL, ", threads: 2, layout: \"", layout, "\", name: ", name);
    groups.push_back(absl::StrCat(begin, "-here}"));
    groups.push_back(absl::StrCat(begin, ", ", devices, "}"));
  }
  NodeCluster cluster({.groups = groups, .hosts = hosts});
  ASSERT_TRUE(cluster.Start());
  cluster.Run("node-a");
  cluster.Run("node-b");
  cluster.server().WaitUntilReady();
  const auto picture = [&](const std::string& name) {
    const std::string job = cluster.server().Submit("red apple", absl::StrCat(R"(, "model": ")", name, R"(")"));
    EXPECT_EQ(cluster.server().Ended(job), "done");
    // Compares pixels only, because the file's parameters name the group's model.
    return server::DecodeImage(cluster.server().ImageBytes(cluster.server().Get(job)))->image.bytes;
  };
  for (const GroupOverHosts& group : groups_over_hosts) {
    EXPECT_TRUE(picture(group.name) == picture(group.name + "-here")) << group.name;
  }
  EXPECT_EQ(cluster.Workers("node-a").size(), groups_over_hosts.size());
  EXPECT_EQ(cluster.Workers("node-b").size(), groups_over_hosts.size());
  EXPECT_EQ(cluster.server().Terminate(), 0);
}

TEST(NodesTest, PicturesOfGroupsOverTwoNodesAreThoseOfTheSameLayoutOnOneHost) {
  ExpectPicturesOfOneHost(/*hosts=*/nullptr, kTwoHosts);
}

TEST(NodesTest, PicturesOfGroupsOverTwoAndThreeNetworkNamespacesAreThoseOfOneHost) {
  const absl::StatusOr<std::unique_ptr<NetworkHosts>> hosts = NetworkHosts::Create({"node-a", "node-b"});
  if (!hosts.ok()) GTEST_SKIP() << hosts.status().message() << "; the proof is the test on loopback";
  std::vector<GroupOverHosts> groups(std::begin(kTwoHosts), std::end(kTwoHosts));
  groups.push_back({"three", "cfg=2,ulysses=2", "devices: [cpu, cpu, node-a/cpu:0, node-b/cpu:0]"});
  ExpectPicturesOfOneHost(hosts->get(), groups);
}
#endif

// Uses fake workers whose jobs take some time.
class NodeFaultsTest : public ::testing::Test {
 protected:
  explicit NodeFaultsTest(const std::string& nodes = kFast,
                          absl::StatusOr<std::unique_ptr<NetworkHosts>> hosts = nullptr)
      : hosts_(std::move(hosts)),
        cluster_({.groups = {absl::StrCat("{model: TINY, layout: cfg=2, ", kOverTwo, "}")},
                  .script = "any-model step-time=20 step2-of-[fail]=error pictures=start",
                  .worker = FAKE_WORKER,
                  .nodes = nodes,
                  .hosts = hosts_.ok() ? hosts_->get() : nullptr}) {}

  void Start() {
    oracle_.with_pictures = true;
    ASSERT_TRUE(cluster_.Start());
    for (const char* name : {"node-a", "node-b"}) {
      cluster_.Run(name);
      ASSERT_TRUE(cluster_.HasJoined(name));
    }
    cluster_.server().WaitUntilReady();
    ASSERT_NO_FATAL_FAILURE(oracle_.Learn(cluster_.server()));
  }

  // Submits jobs for a few seconds of work.
  void SubmitAll() {
    for (int round = 0; round < 3; ++round) {
      for (int kind = 0; kind < KillOracle::kKinds; ++kind) {
        const TestResponse response = cluster_.server().Call("POST", "/v1/jobs", oracle_.Body(kind));
        ASSERT_EQ(response.status, 202) << response.body;
        oracle_.jobs.push_back(
            {.id = std::string(boost::json::parse(response.body).at("id").as_string()), .kind = kind});
      }
    }
    // Those of Learn have ended before.
    WaitUntil("a job that has begun", [&] {
      return std::any_of(
          oracle_.jobs.begin() + KillOracle::kKinds, oracle_.jobs.end(),
          [&](const KillOracle::Acknowledged& job) { return cluster_.server().StatusOf(job.id) != "queued"; });
    });
  }

  // Returns the only rank on a node, which may have been lost for a moment on a slow machine.
  pid_t RankOn(const std::string& name) {
    std::vector<pid_t> workers;
    WaitUntil("a rank on " + name, [&] { return (workers = cluster_.Workers(name)).size() == 1; });
    return workers.size() == 1 ? workers[0] : -1;
  }

  void ExpectNothingLost() {
    const KillOracle::Tally tally = oracle_.Judge(cluster_.server());
    const std::string text = tally.Text(oracle_.jobs.size());
    std::printf("%s\n", text.c_str());
    EXPECT_THAT(text, HasSubstr("lost 0 duplicated 0 torn 0"));
    EXPECT_EQ(tally.done, static_cast<int>(oracle_.jobs.size()));
    EXPECT_EQ(cluster_.server().Terminate(), 0);
  }

  void WaitUntilLogged(const std::string& text) {
    const bool logged = WaitUntil(text, [&] { return absl::StrContains(LogOfServer(), text); });
    EXPECT_TRUE(logged) << "the server logged:\n" << LogOfServer();
  }
  // Returns the information about a node that the server shows to operators.
  boost::json::object InfoOf(const std::string& name) {
    const boost::json::value info = boost::json::parse(cluster_.server().Call("GET", "/v1/server").body);
    for (const boost::json::value& node : info.at("nodes").as_array()) {
      if (node.at("name").as_string() == name) return node.as_object();
    }
    ADD_FAILURE() << "no " << name << " in " << info;
    return {{"state", ""}, {"epoch", 0}};
  }
  void WaitForState(const std::string& node, const std::string& state) {
    WaitUntil(absl::StrCat(node, " is ", state), [&] { return InfoOf(node).at("state").as_string() == state; });
  }
  std::string LogOfServer() { return cluster_.server().process().errors(); }

  const absl::StatusOr<std::unique_ptr<NetworkHosts>> hosts_;
  NodeCluster cluster_;
  KillOracle oracle_;
};

constexpr char kJoinedTwice[] =
    "{\"event\":\"joined\",\"node\":\"node-b\"}\n{\"event\":\"joined\",\"node\":\"node-b\"}\n";

// Fake workers load nothing, so this measures everything that a group across hosts needs in addition to loading. The
// speed is checked against its bound only in a long run.
TEST_F(NodeFaultsTest, AGroupIsReadySoonAfterItsLastNodeHasJoined) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.Run("node-a");
  ASSERT_TRUE(cluster_.HasJoined("node-a"));
  const absl::Duration started = base::SteadyNow();
  cluster_.Run("node-b");
  ASSERT_TRUE(cluster_.HasJoined("node-b"));
  const absl::Duration joined = base::SteadyNow();
  cluster_.server().WaitUntilReady();
  const absl::Duration ready = base::SteadyNow();
  std::printf("ready %.2f s after the last node joined, which took it %.2f s from its start\n",
              absl::ToDoubleSeconds(ready - joined), absl::ToDoubleSeconds(joined - started));
  if (IsLongRun()) {
    EXPECT_LT(ready - joined, absl::Seconds(5));
  }
  EXPECT_EQ(cluster_.server().Terminate(), 0);
}

TEST_F(NodeFaultsTest, NoJobIsLostWhenAllOfANodeIsKilledAndComesBack) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(SubmitAll());
  cluster_.node("node-b").Signal(SIGKILL);
  cluster_.node("node-b").Wait();
  WaitUntil("the end of its workers", [&] { return cluster_.Workers("node-b").empty(); });
  WaitUntilLogged("is lost with its node");
  cluster_.Run("node-b");
  ExpectNothingLost();
}

TEST_F(NodeFaultsTest, ARankThatDiesEndsItsGroupAndNoNode) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(SubmitAll());
  const pid_t rank = RankOn("node-a");
  ASSERT_GT(rank, 0);
  kill(rank, SIGKILL);
  ASSERT_TRUE(WaitUntilGone(rank));
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
  WaitUntilLogged("node node-b: is lost");
  cluster_.server().WaitUntilReady();
  to_a.Stall();
  WaitUntilLogged("node node-a: is lost: it sent nothing for 2s");
  to_a.Pass();
  ExpectNothingLost();
}

TEST_F(NodeFaultsTest, AProcessThatWasLostWhileItWasStoppedMayNotComeBackAfterItsSuccessor) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(SubmitAll());
  ChildProcess& stopped = cluster_.node("node-b");
  const pid_t rank = RankOn("node-b");
  ASSERT_GT(rank, 0);
  StopProcess(stopped.pid());
  WaitUntilLogged("is lost with its node: it sent nothing for 2s");
  WaitForState("node-b", "lost");
  cluster_.Run("node-b");
  ASSERT_TRUE(cluster_.HasJoined("node-b"));
  stopped.Signal(SIGCONT);
  EXPECT_NE(stopped.Wait(), 0);
  EXPECT_THAT(stopped.errors(), HasSubstr("a newer process with that name has joined"));
  EXPECT_TRUE(WaitUntilGone(rank));
  WaitUntilLogged("node 'node-b' is refused: a newer process with that name has joined");
  ExpectNothingLost();
}

// Connections of dead nodes seem alive for longer than any wait of the tests.
class SeeminglyAliveNodesTest : public NodeFaultsTest {
 protected:
  SeeminglyAliveNodesTest() : NodeFaultsTest("beat: 100ms, lost_after: 300s, join_wait: 1s") {}
};

TEST_F(SeeminglyAliveNodesTest, AStoppedProcessIsFencedByItsSuccessorAndEndsWhenItGoesOn) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(SubmitAll());
  ChildProcess& stopped = cluster_.node("node-b");
  const std::vector<pid_t> ranks = cluster_.Workers("node-b");
  ASSERT_EQ(ranks.size(), 1u);
  StopProcess(stopped.pid());
  cluster_.Run("node-b");
  ASSERT_TRUE(cluster_.HasJoined("node-b"));
  WaitUntilLogged("a newer process has joined, and the earlier one is fenced");
  WaitUntil("the group on the successor", [&] { return cluster_.Workers("node-b").size() == 2; });
  cluster_.server().WaitUntilReady();
  stopped.Signal(SIGCONT);
  EXPECT_NE(stopped.Wait(), 0);
  EXPECT_THAT(stopped.errors(), HasSubstr("a newer process with that name has joined"));
  EXPECT_TRUE(WaitUntilGone(ranks[0]));
  EXPECT_EQ(cluster_.Workers("node-b").size(), 1u) << "the successor's rank goes on";
  ExpectNothingLost();
}

class NodeLinksTest : public NodeFaultsTest {
 protected:
  NodeLinksTest() : NodeFaultsTest(kFast, NetworkHosts::Create({"node-a", "node-b"})) {}
  void SetUp() override {
    if (!hosts_.ok()) GTEST_SKIP() << hosts_.status().message() << "; the proof is the test with a proxy on loopback";
  }
};

TEST_F(NodeLinksTest, NoJobIsLostWhenTheLinkOfAHostIsDownAndUpAgain) {
  ASSERT_NO_FATAL_FAILURE(Start());
  ASSERT_NO_FATAL_FAILURE(SubmitAll());
  // Its state may be another one for a moment: a machine that stands still for two seconds looks like a lost link.
  WaitForState("node-b", "joined");
  const boost::json::object joined = InfoOf("node-b");
  EXPECT_EQ(joined.at("devices"), boost::json::value({"cpu:0"}));
  (*hosts_)->SetLink("node-b", false);
  WaitUntilLogged("is lost with its node: it sent nothing for 2s");
  WaitForState("node-b", "lost");
  WaitForState("node-a", "joined");
  WaitUntil("the end of its workers", [&] { return cluster_.Workers("node-b").empty(); });
  (*hosts_)->SetLink("node-b", true);
  EXPECT_TRUE(cluster_.node("node-b").WaitForOutput(kJoinedTwice));
  WaitForState("node-b", "joined");
  EXPECT_GT(InfoOf("node-b").at("epoch").as_int64(), joined.at("epoch").as_int64());
  ExpectNothingLost();
}

class NodeRefusalsTest : public ::testing::Test {
 protected:
  NodeRefusalsTest()
      : cluster_({.groups = {"{model: TINY, layout: serial}"},
                  .script = "any-model step-time=1",
                  .worker = FAKE_WORKER,
                  .nodes = kFast}) {}

  // Checks that the server has logged the reason, and that the node's error shows no internals.
  void ExpectRefused(const std::string& errors, const std::string& why) {
    EXPECT_THAT(errors, HasSubstr(why));
    EXPECT_THAT(errors, Not(HasSubstr("ssl_")));
    EXPECT_THAT(errors, Not(HasSubstr("ipv4:")));
    WaitUntil(why, [&] { return absl::StrContains(cluster_.server().process().errors(), why); });
  }

  // Runs the node until it gives up with this error. To a node, a server that stands still for a second is absent.
  void ExpectGivesUp(const std::string& name, const NodeCluster::Node& node, const std::string& why) {
    std::string errors;
    const bool given_up = WaitUntil(why, [&] {
      errors = cluster_.ErrorsOf(name, node);
      return absl::StrContains(errors, why);
    });
    EXPECT_TRUE(given_up) << errors;
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
  ExpectGivesUp("node-a", {.join_timeout = "1"}, "has no valid certificate");
}

TEST_F(NodeRefusalsTest, ANodesCertificateOfAnotherAuthority) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.WriteFiles("node-a", TestAuthority("another authority"));
  cluster_.authority().Write(cluster_.Folder("node-a") + "/ca.crt");  // needed to trust the server
  ExpectRefused(cluster_.ErrorsOf("node-a", {}),
                "the node's certificate is refused: unable to get local issuer certificate");
}

TEST_F(NodeRefusalsTest, ANodesCertificateOfAnotherAuthorityThatIsShownWithTheServers) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.WriteFiles("node-a", TestAuthority("another authority"));
  const std::string folder = cluster_.Folder("node-a");
  cluster_.authority().Write(folder + "/ca.crt");
  std::ofstream(folder + "/tls.crt", std::ios::app) << std::ifstream(folder + "/ca.crt").rdbuf();
  ExpectRefused(cluster_.ErrorsOf("node-a", {}),
                "the node's certificate is refused: unable to get local issuer certificate");
}

TEST_F(NodeRefusalsTest, CertificatesThatHaveExpired) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.WriteFiles("node-a", cluster_.authority(), /*seconds=*/-60);
  ExpectRefused(cluster_.ErrorsOf("node-a", {}), "the node's certificate is refused: certificate has expired");
  ASSERT_EQ(cluster_.server().Terminate(), 0);
  cluster_.WriteFiles("", cluster_.authority(), /*seconds=*/-60);
  ASSERT_TRUE(cluster_.Start());
  ExpectGivesUp("node-b", {.join_timeout = "1"}, "not be expired, and name the host");
}

TEST_F(NodeRefusalsTest, ATokenFileWithoutAToken) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.WriteFiles("node-a", cluster_.authority());
  cluster_.WriteToken("node-a", "");
  EXPECT_THAT(cluster_.ErrorsOf("node-a", {}), HasSubstr("has 0 characters; valid values have 16 or more"));
}

TEST_F(NodeRefusalsTest, AHelloWithoutAToken) {
  ASSERT_TRUE(cluster_.Start());
  cluster_.WriteFiles("node-a", cluster_.authority());
  const std::string folder = cluster_.Folder("node-a");
  const auto credentials = server::NodeChannelCredentials(server::NodeFilesIn(folder, folder + "/token"));
  ASSERT_TRUE(credentials.ok()) << credentials.status();
  const auto stub =
      internal::NodeController::NewStub(grpc::CreateChannel(absl::StrCat("127.0.0.1:", cluster_.port()), *credentials));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  context.set_wait_for_ready(true);
  const auto stream = stub->Join(&context);
  internal::FromNode first;
  first.mutable_hello()->set_name("node-a");
  first.mutable_hello()->add_devices("cpu:0");
  EXPECT_TRUE(stream->Write(first));
  internal::ToNode answer;
  EXPECT_FALSE(stream->Read(&answer)) << answer.DebugString();
  const grpc::Status status = stream->Finish();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(status.error_message(), HasSubstr("it sent no token"));
}

TEST_F(NodeRefusalsTest, CertificatesAndTokensAreReplacedWithoutARestart) {
  ASSERT_TRUE(cluster_.Start());
  FaultyProxy proxy("127.0.0.2", cluster_.port());
  const std::string join = absl::StrCat("127.0.0.2:", proxy.port());
  cluster_.Run("node-b", {.join = join});
  ASSERT_TRUE(cluster_.HasJoined("node-b"));
  const TestAuthority fresh("the next authority");
  for (const char* name : {"", "node-a", "node-b"}) {
    cluster_.WriteFiles(name, fresh);
    cluster_.WriteToken(name, "the next token, of other length");
  }
  cluster_.Run("node-a");  // retries until the listener has read its files
  EXPECT_TRUE(cluster_.HasJoined("node-a"));
  proxy.Cut();
  EXPECT_TRUE(cluster_.node("node-b").WaitForOutput(kJoinedTwice)) << "with what it was started with it could not";
}

TEST(NodeLimitsTest, ANodeThatCannotHaveItsFilesOrThreadsDoesNotStart) {
  NodeCluster cluster({.groups = {"{model: TINY, devices: [node-a/cpu:0]}"}, .worker = FAKE_WORKER});
  ASSERT_TRUE(cluster.Start());
  EXPECT_THAT(cluster.ErrorsOf("node-a", {.devices = "cpu:4", .open_files = 32}),
              AllOf(HasSubstr("(RLIMIT_NOFILE) is 32, and "), HasSubstr("LimitNOFILE=")));
  EXPECT_EQ(cluster.node("node-a").Wait(), kDeviceExitCode);
  EXPECT_THAT(cluster.ErrorsOf("node-b", {.devices = "cpu:4", .processes = ProcessesInUse() + 30}),
              AllOf(HasSubstr("(RLIMIT_NPROC) is "), HasSubstr("more are needed"), HasSubstr("LimitNPROC=")));
  EXPECT_EQ(cluster.node("node-b").Wait(), kDeviceExitCode);
}

}  // namespace
}  // namespace tessera
