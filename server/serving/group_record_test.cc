#include "server/serving/group_record.h"

#include <gtest/gtest.h>

#include "absl/strings/str_replace.h"
#include "control/host/device_memory.h"

namespace tessera::server {
namespace {

GroupRecord Record() {
  return {.subject = {.model_digest = "m", .layout = "cfg=2", .device = "cpu", .dtype = "fp32", .build = "b"},
          .load = LoadText({.model = "/models/tiny"}),
          .files = "f",
          .contents = "c",
          .workers = {{.pid = 17, .start_time = ~uint64_t{0}, .socket = "/run/a/worker.sock"},
                      {.pid = 18, .start_time = 5, .socket = "/run/b/worker.sock"}},
          .loaded = true,
          .memory_budget = control::MemoryBudget{.most = 9, .free = 8}};
}

TEST(GroupRecordTest, ReadsBackWhatWasWritten) {
  const absl::StatusOr<GroupRecord> read = ParseGroupRecord(GroupRecordText(Record()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, Record());
}

TEST(GroupRecordTest, ReadsBackARecordOfAGroupOnTheHost) {
  GroupRecord record = Record();
  record.memory_budget.reset();
  const absl::StatusOr<GroupRecord> read = ParseGroupRecord(GroupRecordText(record));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, record);
}

TEST(GroupRecordTest, WritesDifferentTextsForDifferentWaysToLoad) {
  const std::string text = LoadText({.model = "m"});
  EXPECT_NE(text, LoadText({.model = "n"}));
  EXPECT_NE(text, LoadText({.model = "m", .dtype = control::Dtype::kBf16}));
  EXPECT_NE(text, LoadText({.model = "m", .device = "cuda:1"}));
  EXPECT_NE(text, LoadText({.model = "m", .placement = {.threads = 2}}));
  EXPECT_NE(text, LoadText({.model = "m", .placement = {.text_encoders = control::ComponentPlacement::kCpu}}));
  EXPECT_NE(text, LoadText({.model = "m", .placement = {.autoencoder = control::AutoencoderPlacement::kUnloaded}}));
  EXPECT_NE(text, LoadText({.model = "m", .prompt_cache_bytes = 0}));
}

TEST(GroupRecordTest, RefusesTextsThatAreNoRecords) {
  const std::string text = GroupRecordText(Record());
  const std::vector<std::pair<std::string, std::string>> changes = {{"\"version\":2", "\"version\":3"},
                                                                    {"\"pid\":17", "\"pid\":17.5"},
                                                                    {"\"pid\":17", "\"pid\":99999999999"},
                                                                    {"\"pid\":17", "\"pid\":\"17\""},
                                                                    {"\"start_time\":5", "\"start_time\":-5"},
                                                                    {"\"build\"", "\"built\""},
                                                                    {"\"load\":\"", "\"load\":1,\"x\":\""},
                                                                    {"\"workers\":[", "\"workers\":[7,"},
                                                                    {"\"free\":8", "\"free\":10"},
                                                                    {"\"free\":8", "\"free\":-8"},
                                                                    {"\"most\":9", "\"least\":9"},
                                                                    {"}\n", ""}};
  for (const auto& [from, to] : changes) {
    const std::string changed = absl::StrReplaceAll(text, {{from, to}});
    ASSERT_NE(changed, text) << from;
    EXPECT_EQ(ParseGroupRecord(changed).status().code(), absl::StatusCode::kInvalidArgument) << to;
  }
  GroupRecord none = Record();
  none.workers.clear();
  EXPECT_FALSE(ParseGroupRecord(GroupRecordText(none)).ok());
  EXPECT_FALSE(ParseGroupRecord("").ok());
  EXPECT_FALSE(ParseGroupRecord(std::string(100000, '[')).ok());
}

}  // namespace
}  // namespace tessera::server
