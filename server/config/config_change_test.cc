#include "server/config/config_change.h"

#include <gmock/gmock.h>

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ServerConfig Config(const std::string& more = "", const std::string& groups = "[{model: emoji}]") {
  return ReadServerConfig("groups: " + groups + "\n" + more).value();
}

TEST(ConfigChangeTest, NothingNewChangesNothing) {
  const absl::StatusOr<ConfigChange> change = ChangeOf(Config(), Config());
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->config, Config());
  EXPECT_THAT(change->changed, IsEmpty());
  EXPECT_THAT(change->needs_restart, IsEmpty());
}

TEST(ConfigChangeTest, TakesKeysGroupsAndLimits) {
  const ServerConfig wanted =
      Config("keys_file: keys.txt\nlimits: {steps_per_image: 50, max_job_seconds: 7.5}\ndrain_time: 5s",
             "[{model: emoji, count: 2}]");
  const absl::StatusOr<ConfigChange> change = ChangeOf(Config(), wanted);
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->config, wanted);
  EXPECT_THAT(change->changed,
              ElementsAre("groups", "drain_time: 1m -> 5s", HasSubstr("keys.txt"),
                          "limits.max_job_seconds: 3600 -> 7.5", "limits.steps_per_image: 1000 -> 50"));
  EXPECT_THAT(change->needs_restart, IsEmpty());
}

TEST(ConfigChangeTest, TakesPictureHostsAndTheInputCheck) {
  const ServerConfig wanted = Config("picture_hosts: [images.example]\ninput_check: http://localhost:9000/\n");
  const absl::StatusOr<ConfigChange> change = ChangeOf(Config(), wanted);
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->config, wanted);
  EXPECT_THAT(change->changed,
              ElementsAre("input_check.url: \"\" -> http://localhost:9000/", HasSubstr("images.example")));
  EXPECT_THAT(change->needs_restart, IsEmpty());
}

TEST(ConfigChangeTest, LeavesWhatTakesANewStartAndNamesIt) {
  const absl::StatusOr<ConfigChange> change =
      ChangeOf(Config(), Config("listen: {http: {port: 8090}, grpc: off}\nlimits: {connections: 7, queued_jobs: 3}\n"
                                "data_folder: elsewhere"));
  ASSERT_TRUE(change.ok()) << change.status();
  EXPECT_EQ(change->config, Config("limits: {queued_jobs: 3}"));
  EXPECT_THAT(change->changed, ElementsAre("limits.queued_jobs: 10000 -> 3"));
  EXPECT_THAT(change->needs_restart, ElementsAre("data_folder", "limits.connections", "listen.grpc", "listen.http"));
}

TEST(ConfigChangeTest, NeverLeavesListenersBeyondThisMachineWithoutTheKeysTheyHad) {
  const ServerConfig now = Config("keys_file: keys.txt\nlisten: {http: {address: 0.0.0.0}}");
  const absl::StatusOr<ConfigChange> change = ChangeOf(now, Config());
  EXPECT_EQ(change.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(change.status().message()), HasSubstr("API keys"));
}

}  // namespace
}  // namespace tessera::server
