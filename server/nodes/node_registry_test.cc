#include "server/nodes/node_registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/time/clock.h"
#include "tests/support/fencing_scenario.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(NodeRegistryTest, WhatAFencedProcessStillSaysIsNotHeard) {
  EXPECT_TRUE(ASuccessorsRankOutlivesItsPredecessorsWord());
}

TEST(NodeRegistryTest, ANodeIsWelcomedBeforeAGroupThatWaitedForItStarts) {
  server::NodeRegistryOptions options = RegistryOptions();
  options.join_wait = absl::Seconds(60);
  NodeRegistry registry(options);
  absl::StatusOr<std::unique_ptr<RemoteRanks>> started = absl::UnknownError("not yet");
  std::thread group([&] { started = registry.Start(OneRankOn("node-a/cpu:0")); });
  const auto link = std::make_shared<RecordingLink>();
  const uint64_t epoch = *registry.Admit(HelloOf("node-a", 1), link);
  group.join();
  ASSERT_TRUE(started.ok()) << started.status();
  const std::vector<internal::ToNode> sent = link->sent();
  ASSERT_EQ(sent.size(), 2u);
  EXPECT_TRUE(sent[0].has_welcome());
  EXPECT_TRUE(sent[1].has_start());
  registry.Lose("node-a", epoch, "the test ends");
}

TEST(NodeRegistryTest, ALaterProcessEndsTheRanksOfTheEarlierOneWhichIsNotifiedAndMayNotRejoin) {
  NodeRegistry registry(RegistryOptions());
  const auto link = std::make_shared<RecordingLink>();
  ASSERT_TRUE(registry.Admit(HelloOf("node-a", 7), link).ok());
  auto started = registry.Start(OneRankOn("node-a/cpu:0"));
  ASSERT_TRUE(started.ok()) << started.status();
  const std::unique_ptr<RankProcess> rank = std::move((*started)->TakeProcesses()[0]);
  EXPECT_FALSE(rank->WaitForExit(absl::ZeroDuration()));
  ASSERT_TRUE(registry.Admit(HelloOf("node-a", 3), std::make_shared<RecordingLink>()).ok());
  EXPECT_TRUE(rank->WaitForExit(absl::ZeroDuration()));
  EXPECT_TRUE(rank->host_lost());
  EXPECT_TRUE(link->sent().back().has_replaced() || link->sent().back().has_kill());
  const absl::Status back = registry.Admit(HelloOf("node-a", 7), link).status();
  EXPECT_EQ(back.code(), absl::StatusCode::kAborted);
  EXPECT_THAT(Message(back), HasSubstr("a newer process with that name has joined"));
}

TEST(NodeRegistryTest, AConnectionThatWasReplacedTakesNothingWithItWhenItEnds) {
  NodeRegistry registry(RegistryOptions());
  const uint64_t before = *registry.Admit(HelloOf("node-a", 1), std::make_shared<RecordingLink>());
  const uint64_t after = *registry.Admit(HelloOf("node-a", 1), std::make_shared<RecordingLink>());
  registry.Lose("node-a", before, "its connection has ended");
  EXPECT_EQ(registry.Infos()[0].state, NodeState::kJoined);
  registry.Lose("node-a", after, "its connection has ended");
  EXPECT_EQ(registry.Infos()[0].state, NodeState::kLost);
}

TEST(NodeRegistryTest, OperatorsLearnOfEveryNodeItsStateDevicesEpochAndSinceWhen) {
  NodeRegistry registry(RegistryOptions());
  const absl::Time before = absl::Now();
  const uint64_t first = *registry.Admit(HelloOf("node-b", 1), std::make_shared<RecordingLink>());
  const uint64_t second = *registry.Admit(HelloOf("node-a", 1), std::make_shared<RecordingLink>());
  const std::vector<NodeInfo> joined = registry.Infos();
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_EQ(joined[0].name, "node-a");
  EXPECT_EQ(joined[0].epoch, second);
  EXPECT_EQ(joined[1].name, "node-b");
  EXPECT_EQ(joined[1].epoch, first);
  EXPECT_EQ(joined[1].devices, std::vector<std::string>{"cpu:0"});
  EXPECT_GE(joined[1].changed, before);
  registry.Lose("node-b", first, "the test ends");
  const NodeInfo lost = registry.Infos()[1];
  EXPECT_EQ(lost.state, NodeState::kLost);
  EXPECT_EQ(lost.epoch, first);
  EXPECT_GE(lost.changed, joined[1].changed);
  EXPECT_EQ(registry.Infos()[0].changed, joined[0].changed) << "nothing has become of the other one";
}

TEST(NodeRegistryTest, ARankOfALostNodeSaysWhatBecameOfIt) {
  NodeRegistry registry(RegistryOptions());
  const uint64_t epoch = *registry.Admit(HelloOf("node-a", 1), std::make_shared<RecordingLink>());
  auto started = registry.Start(OneRankOn("node-a/cpu:0"));
  const std::unique_ptr<RankProcess> rank = std::move((*started)->TakeProcesses()[0]);
  EXPECT_EQ(rank->node(), "node-a");
  registry.Lose("node-a", epoch, "it sent nothing for 5s");
  EXPECT_EQ(rank->StateText(), "is lost with its node: it sent nothing for 5s");
}

TEST(NodeRegistryTest, WhatNodesAndGroupsCannotBeIsRefusedByName) {
  NodeRegistry registry(RegistryOptions());
  const auto link = std::make_shared<RecordingLink>();
  internal::NodeHello other = HelloOf("node-a", 1);
  other.set_version("tessera of another test");
  EXPECT_THAT(Message(registry.Admit(other, link).status()), HasSubstr("install the same version on both"));
  EXPECT_THAT(Message(registry.Admit(HelloOf("Node A", 1), link).status()), HasSubstr("valid values are 1 to 63"));
  internal::NodeHello without = HelloOf("node-a", 1);
  without.set_devices(0, "gpu:0");
  EXPECT_THAT(Message(registry.Admit(without, link).status()), HasSubstr("valid values are cpu:N and cuda:N"));
  ASSERT_TRUE(registry.Admit(HelloOf("node-a", 1), link).ok());
  const absl::Status absent = registry.Start(OneRankOn("node-b/cpu:0")).status();
  EXPECT_EQ(absent.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(Message(absent), HasSubstr("node node-b, which must run rank 0, has not joined; the nearest is node-a"));
  const absl::Status device = registry.Start(OneRankOn("node-a/cpu:1")).status();
  EXPECT_EQ(device.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(Message(device), HasSubstr("node-a offers no cpu:1; the nearest is cpu:0"));
}

}  // namespace
}  // namespace tessera::server
