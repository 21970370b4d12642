// Tests `tessera serve --fake-workers`, which runs the whole server with workers that need no model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "tests/faults/test_server.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class FakeWorkersTest : public ::testing::Test {
 protected:
  TestServer& Start(const std::string& script, std::vector<std::string> groups = {"{model: nowhere}"}) {
    server_ = std::make_unique<TestServer>(
        TestServerOptions{.worker = FAKE_WORKER, .script = script, .fake_workers = true, .groups = std::move(groups)});
    EXPECT_TRUE(server_->Start());
    server_->WaitUntilReady();
    return *server_;
  }

  ChildOptions Command(const std::vector<std::string>& arguments) {
    ChildOptions child = {.arguments = {TESSERA_EXECUTABLE, "serve"},
                          .folder = ::testing::TempDir(),
                          .environment = {{"PATH", "/usr/bin:/bin"}}};
    child.arguments.insert(child.arguments.end(), arguments.begin(), arguments.end());
    return child;
  }

  std::unique_ptr<TestServer> server_;
};

TEST_F(FakeWorkersTest, AJpegWithoutRoomForItsPromptCarriesTheOtherParametersAndAWarning) {
  TestServer& server = Start("step-time=0");
  const std::string job = server.Submit(std::string(32'768, 'x'), R"(, "output_format": "jpeg")");
  EXPECT_EQ(server.Ended(job), "done");
  const boost::json::object ended = server.Get(job);
  EXPECT_THAT(boost::json::serialize(ended), HasSubstr("a shortened prompt of at most "));
  const std::string utf16("\0S\0h\0o\0r\0t\0e\0n\0e\0d\0:", 20);
  EXPECT_THAT(server.ImageBytes(ended), HasSubstr(utf16));
}

TEST_F(FakeWorkersTest, ModelsAndDevicesOfAConfigurationNeedNotBeThere) {
  TestServer& server =
      Start("step-time=0", {"{model: flux-dev, layout: \"cfg=2,ulysses=2\", devices: [cuda:0, cuda:1, cuda:2, cuda:3]}",
                            "{model: absent/sd3, name: other}"});
  EXPECT_EQ(server.Workers().size(), 5u);
  const std::string job = server.Submit("apple");
  EXPECT_EQ(server.Ended(job), "done");
  EXPECT_EQ(server.Get(job).at("layout"), "cfg=2,ulysses=2");
  EXPECT_EQ(server.Ended(server.Submit("pear", R"(, "model": "other")")), "done");
}

TEST_F(FakeWorkersTest, TheQueueOfRealModelsIsLeftAlone) {
  TestServer& server = Start("step-time=0");
  EXPECT_EQ(server.Ended(server.Submit("apple")), "done");
  EXPECT_FALSE(std::filesystem::exists(server.folder() + "/data"));
  EXPECT_TRUE(std::filesystem::exists(server.folder() + "/data-fake/jobs.sqlite"));
}

TEST_F(FakeWorkersTest, EveryNthJobFailsWhereThatIsOrdered) {
  TestServer& server = Start("step-time=0 error-every=3");
  for (const char* outcome : {"done", "done", "failed", "done"}) {
    EXPECT_EQ(server.Ended(server.Submit("apple")), outcome);
  }
  EXPECT_EQ(server.Group().at("restarts").to_number<int>(), 0);
}

TEST_F(FakeWorkersTest, EveryNthJobKillsItsWorkersAndIsMadeByTheNextOnes) {
  TestServer& server = Start("step-time=0 die-every=2", {"{model: nowhere, layout: \"cfg=2\"}"});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(server.Ended(server.Submit("apple")), "done");
  EXPECT_EQ(server.Group().at("restarts").to_number<int>(), 1);
}

TEST_F(FakeWorkersTest, AModelAndAPortAreEnoughWithoutAConfiguration) {
  const TestFolder folder;
  ChildOptions child = Command({"--fake-workers", "--fake-script", "step-time=0", "--model", "elsewhere/sd3", "--host",
                                "127.0.0.1", "--port", "0"});
  child.folder = folder.path();
  ChildProcess process(child);
  ASSERT_TRUE(process.WaitForOutput("\n")) << process.errors();
  const auto port = static_cast<uint16_t>(boost::json::parse(process.output()).at("http").as_int64());
  EXPECT_THAT(HttpTestClient(port).Call("GET", "/v1/models").body, HasSubstr(R"("id":"sd3")"));
  process.Signal(SIGTERM);
  EXPECT_EQ(process.Wait(), 0);
}

TEST_F(FakeWorkersTest, WhatTheCommandLineChangesIsHeldToTheRulesOfTheConfiguration) {
  const auto refused = [&](const std::vector<std::string>& arguments) {
    ChildProcess process(Command(arguments));
    EXPECT_NE(process.Wait(), 0);
    return process.errors();
  };
  EXPECT_THAT(refused({"--host", "0.0.0.0", "--port", "0"}), HasSubstr("without API keys"));
  EXPECT_THAT(refused({"--port", "65536"}), HasSubstr("port is 65536; valid values are 0 to 65535"));
  EXPECT_THAT(refused({"--port", "eighty"}), HasSubstr("port"));
  EXPECT_THAT(refused({"--log-level", "loud"}), HasSubstr("debug, info, warning, error"));
  EXPECT_THAT(refused({"--model", "emoji", "--config", "tessera.yaml"}), HasSubstr("--config"));
}

TEST_F(FakeWorkersTest, PromptsAskForTrouble) {
  TestServer& server = Start("step-time=0");
  const std::string failed = server.Submit("[fail]");
  EXPECT_EQ(server.Ended(failed), "failed");
  EXPECT_THAT(boost::json::serialize(server.Get(failed).at("error")), HasSubstr("fails as its script says"));
  const std::string warned = server.Submit("[warn]");
  EXPECT_EQ(server.Ended(warned), "done");
  EXPECT_THAT(boost::json::serialize(server.Get(warned).at("warnings")), HasSubstr("the prompt asks for a warning"));
  const std::string deadly = server.Submit("[die]");
  EXPECT_EQ(server.Ended(deadly), "failed");
  EXPECT_THAT(boost::json::serialize(server.Get(deadly).at("error")), HasSubstr("was killed by signal 9"));
  // If the server were killed before the restart, the next server would find the dead worker's socket.
  WaitUntil("restarted", [&] { return server.Group().at("restarts").to_number<int>() == 3; });
}

TEST_F(FakeWorkersTest, OutliveAServerThatIsKilled) {
  TestServer& server = Start("");
  const std::string loads = server.folder() + "/loads";
  server.options().script = absl::StrCat("step-time=0 loads=", loads);
  server.ReplaceBy([&] {
    std::filesystem::remove(loads);
    server.Kill();
    ASSERT_TRUE(server.Start()) << "with workers that it did not start";
  });
  EXPECT_EQ(server.Ended(server.Submit("apple")), "done");
  EXPECT_FALSE(std::filesystem::exists(loads)) << "those of the server before were adopted";
}

TEST_F(FakeWorkersTest, WithoutAConfigurationServeOneModelUnderTheNamesThatClientsUse) {
  ChildProcess process(Command({"--fake-workers", "--print-config"}));
  EXPECT_EQ(process.Wait(), 0) << process.errors();
  EXPECT_THAT(process.output(), AllOf(HasSubstr("fake"), HasSubstr("gpt-image-1"), HasSubstr("tessera-data-fake")));
}

TEST_F(FakeWorkersTest, OrdersThatAreNoneAreRefusedBeforeAnythingStarts) {
  ChildProcess process(Command({"--fake-workers", "--fake-script", "stpe-time=5"}));
  EXPECT_EQ(process.Wait(), 2);
  EXPECT_THAT(process.errors(), HasSubstr("'stpe-time=5' is not an instruction"));
  ChildProcess alone(Command({"--fake-script", "step-time=5"}));
  EXPECT_EQ(alone.Wait(), 2);
  EXPECT_THAT(alone.errors(), HasSubstr("--fake-script needs --fake-workers"));
}

}  // namespace
}  // namespace tessera
