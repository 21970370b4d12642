// Tests two servers with one queue in PostgreSQL: each makes, cancels and reports the jobs that the other accepted. The
// tests also cover the loss of one server and of the database.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "tests/faults/shared_servers.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kSerial[] = "{model: TINY, layout: serial}";
constexpr char kNever[] = "load=hang";  // no group ever becomes ready

PostgresCluster& Cluster() {
  static PostgresCluster cluster(/*syncs=*/false);
  return cluster;
}

class SharedQueueTest : public testing::Test {
 protected:
  TestServer& Start(const std::string& script, const std::string& lease = "1s") {
    TestServer& server = servers_.Add({.worker = FAKE_WORKER,
                                       .script = script,
                                       .groups = {kSerial},
                                       .settings = "ready_when: durable\ndrain_time: 1ms\n",
                                       .admin = "{port: 0}"},
                                      lease);
    EXPECT_TRUE(server.Start());
    server.WaitUntilReady();
    return server;
  }

  SharedServers servers_{Cluster()};
};

TEST_F(SharedQueueTest, WhatOneServerAcceptsTheOtherMakesAndBothReport) {
  TestServer& accepts = Start(kNever);
  TestServer& makes = Start("step-time=1");
  const std::string job = accepts.Submit("red apple");
  // A job's events are reported on the server where it is watched, even if another server makes it.
  HttpTestClient watcher(accepts.port());
  ASSERT_TRUE(watcher.Send(absl::StrCat("GET /v1/jobs/", job, "/events HTTP/1.1\r\nHost: localhost\r\n\r\n")));
  EXPECT_THAT(watcher.ReadUntil("event: done"), HasSubstr("event: done"));
  EXPECT_EQ(accepts.Ended(job), "done");
  EXPECT_EQ(makes.Ended(job), "done");
  EXPECT_EQ(accepts.ImageBytes(accepts.Get(job)), makes.ImageBytes(makes.Get(job)));
  EXPECT_EQ(accepts.Terminate(), 0);
  EXPECT_EQ(makes.Terminate(), 0);
}

TEST_F(SharedQueueTest, OneServerCancelsWhatTheOtherRuns) {
  TestServer& runs = Start("step-time=100");
  TestServer& cancels = Start(kNever);
  const std::string job = cancels.Submit("red apple", R"(, "num_inference_steps": 500)");
  WaitUntil("it runs", [&] { return cancels.StatusOf(job) == "running"; });
  EXPECT_EQ(cancels.Call("DELETE", "/v1/jobs/" + job).status, 200);
  EXPECT_EQ(runs.StatusOf(job), "cancelled");
  // The group is free for other jobs long before the cancelled job would have ended.
  EXPECT_EQ(cancels.Ended(cancels.Submit("green apple", R"(, "num_inference_steps": 1)")), "done");
  EXPECT_EQ(runs.Terminate(), 0);
  EXPECT_EQ(cancels.Terminate(), 0);
}

TEST_F(SharedQueueTest, ServersAddTheirUsageToOneTotalThatEachReports) {
  TestServer& one = Start("step-time=1");
  TestServer& other = Start("step-time=1");
  for (int i = 0; i < 4; ++i) {
    TestServer& accepts = i % 2 == 0 ? one : other;
    EXPECT_EQ(accepts.Ended(accepts.Submit("red apple", R"(, "num_inference_steps": 5)")), "done");
  }
  for (TestServer* server : {&one, &other}) {
    const TestResponse usage = HttpTestClient(server->admin_port()).Call("GET", "/v1/usage");
    ASSERT_EQ(usage.status, 200) << usage.body;
    int64_t images = 0, steps = 0;
    const boost::json::value rows = boost::json::parse(usage.body);
    for (const boost::json::value& row : rows.at("data").as_array()) {
      images += row.at("images").as_int64();
      steps += row.at("steps").as_int64();
    }
    EXPECT_EQ(images, 4);
    EXPECT_EQ(steps, 20);
  }
  EXPECT_EQ(one.Terminate(), 0);
  EXPECT_EQ(other.Terminate(), 0);
}

TEST_F(SharedQueueTest, OneKeyMakesOneJobWhicheverServerItComesTo) {
  TestServer& one = Start(kNever);
  TestServer& other = Start(kNever);
  const std::string body = R"({"prompt": "red apple", "size": "64x64", "seed": 5})";
  const TestResponse first = one.Call("POST", "/v1/jobs", body, "key");
  const TestResponse second = other.Call("POST", "/v1/jobs", body, "key");
  EXPECT_EQ(boost::json::parse(first.body).at("id"), boost::json::parse(second.body).at("id"));
  EXPECT_EQ(other.Call("POST", "/v1/jobs", R"({"prompt": "another", "size": "64x64", "seed": 5})", "key").status, 409);
}

TEST_F(SharedQueueTest, WhatAKilledServerRanIsMadeByTheOther) {
  TestServer& killed = Start("step-time=100");
  const std::string job = killed.Submit("red apple", R"(, "num_inference_steps": 500)");
  const std::string next = killed.Submit("green apple", R"(, "num_inference_steps": 2)");
  WaitUntil("it runs", [&] { return killed.StatusOf(job) == "running"; });
  TestServer& lives = Start("step-time=1");
  killed.Kill();
  EXPECT_EQ(lives.Ended(job), "done");
  EXPECT_EQ(lives.Ended(next), "done");
  EXPECT_EQ(lives.Terminate(), 0);
}

TEST_F(SharedQueueTest, AServerThatEndsInOrderGivesItsWorkToTheOtherAtOnce) {
  TestServer& ends = Start("step-time=100", /*lease=*/"1h");
  const std::string job = ends.Submit("red apple", R"(, "num_inference_steps": 500, "deadline_ms": 600000)");
  WaitUntil("it runs", [&] { return ends.StatusOf(job) == "running"; });
  TestServer& goes_on = Start("step-time=1", /*lease=*/"1h");
  EXPECT_EQ(ends.Terminate(), 0);
  EXPECT_EQ(goes_on.Ended(job), "done");
  EXPECT_EQ(goes_on.Terminate(), 0);
}

TEST_F(SharedQueueTest, BothReportTheWholeQueue) {
  TestServer& one = Start(kNever);
  TestServer& other = Start(kNever);
  for (int i = 0; i < 3; ++i) one.Submit("red apple");
  for (int i = 0; i < 2; ++i) other.Submit("red apple");
  for (TestServer* server : {&one, &other}) {
    WaitUntil("five jobs wait", [&] {
      return boost::json::parse(server->Call("GET", "/v1/server").body).at("queued_jobs").as_int64() == 5;
    });
  }
}

TEST_F(SharedQueueTest, WithoutItsDatabaseAServerIsNotReadyAndComesBackByItself) {
  PostgresCluster& cluster = Cluster();
  SharedServers servers(cluster);
  const TestServerOptions options = {.worker = FAKE_WORKER, .script = "step-time=10", .groups = {kSerial}};
  TestServer& one = servers.Add(options);
  TestServer& other = servers.Add(options);
  for (TestServer* server : {&one, &other}) {
    ASSERT_TRUE(server->Start());
    server->WaitUntilReady();
  }
  const std::string job = one.Submit("red apple", R"(, "num_inference_steps": 100)");
  cluster.Kill();
  for (TestServer* server : {&one, &other}) {
    WaitUntil("not ready", [&] { return server->Call("GET", "/readyz").status == 503; });
    const TestResponse refused = server->Call("POST", "/v1/jobs", R"({"prompt": "x", "size": "64x64"})");
    EXPECT_EQ(refused.status, 503);
    EXPECT_THAT(refused.body, AllOf(HasSubstr("storage_unavailable"), HasSubstr("database of the server's queue")));
    EXPECT_EQ(server->Call("GET", "/v1/jobs/" + job).status, 503);
    EXPECT_EQ(server->Call("GET", "/livez").status, 200);
  }
  cluster.Start();
  for (TestServer* server : {&one, &other}) server->WaitUntilReady();
  EXPECT_EQ(other.Ended(job), "done");
  EXPECT_EQ(one.Ended(one.Submit("green apple")), "done");
  EXPECT_EQ(one.Terminate(), 0);
  EXPECT_EQ(other.Terminate(), 0);
}

TEST_F(SharedQueueTest, TheDoctorSaysWhatTheDatabaseHolds) {
  TestServer& server = Start(kNever, /*lease=*/"1h");  // a server whose lease is over does not count
  for (int i = 0; i < 2; ++i) server.Submit("red apple");
  const auto found = [&](const server::PostgresAddress& store) {
    server.Write("doctor.yaml", absl::StrCat("data_folder: ", servers_.data_folder(), "\nstore: {dsn: \"", store.dsn,
                                             "\", password_file: \"", store.password_file, "\"}\n"));
    ChildProcess doctor({.arguments = {TESSERA_EXECUTABLE, "doctor", "-c", "doctor.yaml"},
                         .folder = server.folder(),
                         .environment = {{"PATH", "/usr/bin:/bin"}}});
    doctor.Wait();
    doctor.WaitForOutput("no such text: all of it");
    return doctor.output();
  };
  EXPECT_THAT(found(servers_.database()), AllOf(HasSubstr("1 running servers"), HasSubstr("2 queued")));
  EXPECT_THAT(found({.dsn = "host=/nowhere"}), HasSubstr("does not answer"));
}

TEST_F(SharedQueueTest, AServerThatCannotReachItsDatabaseSaysSoAndDoesNotStart) {
  const server::PostgresAddress& there = servers_.database();
  const auto errors = [&](const std::string& dsn, const std::string& password_file) {
    TestServer server({.worker = FAKE_WORKER,
                       .groups = {kSerial},
                       .settings = absl::StrCat("store: {dsn: \"", dsn, "\", password_file: ", password_file, "}\n")});
    return server.ErrorsOfStart();
  };
  EXPECT_THAT(errors("host=/nowhere user=tessera", there.password_file), HasSubstr("does not answer"));
  EXPECT_THAT(errors(there.dsn, "/nowhere"), HasSubstr("password file"));
  EXPECT_THAT(errors(there.dsn + " password=x", there.password_file), HasSubstr("put it into the password_file"));
  EXPECT_THAT(errors("no connection string", there.password_file), HasSubstr("is not a connection string"));
}

}  // namespace
}  // namespace tessera
