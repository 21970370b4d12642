#include "server/jobs/stored_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tessera/internal/stored_job.pb.h"
#include "tests/jobs/job_workload.h"

namespace tessera {
namespace {

using ::testing::HasSubstr;

StoredJob SmallJob() { return {.tenant = "alice", .request = SmallRequest(2)}; }

// The stored bytes of a small job after `change`.
std::string Changed(const std::function<void(internal::stored::Job&)>& change) {
  internal::stored::Job message;
  EXPECT_TRUE(message.ParseFromString(*SerializeJob(SmallJob())));
  change(message);
  return message.SerializeAsString();
}

TEST(StoredJob, IgnoresFieldsOfANewerProgram) {
  const std::string bytes = *SerializeJob(SmallJob()) + "\xf2\x3e\x03new";  // field 1006, three bytes
  const absl::StatusOr<StoredJob> job = ParseStoredJob(bytes);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->request.parameters.prompt, "red apple");
}

TEST(StoredJob, RefusesWhatANewerProgramSaysMustNotBeMisread) {
  const absl::Status status = ParseStoredJob(Changed([](auto& job) { job.set_minimum_reader(2); })).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("newer version"));
}

TEST(StoredJob, TakesAbsentFieldsOfAnOlderProgramForTheDefaults) {
  const std::string bytes = Changed([](internal::stored::Job& job) {
    job.mutable_parameters()->clear_true_cfg_scale();
    job.mutable_parameters()->clear_skip_layer_scale();
    job.mutable_parameters()->clear_skip_layer_start();
    job.mutable_parameters()->clear_skip_layer_stop();
  });
  const absl::StatusOr<StoredJob> job = ParseStoredJob(bytes);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->request.parameters.options, PromptOptions());
}

TEST(StoredJob, RefusesEveryValueThatNoValidatorWouldHavePassed) {
  using Job = internal::stored::Job;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<std::pair<std::string, std::function<void(Job&)>>> changes = {
      {"no tenant", [](Job& job) { job.clear_tenant(); }},
      {"no model", [](Job& job) { job.clear_model(); }},
      {"no images", [](Job& job) { job.set_count(0); }},
      {"too many images", [](Job& job) { job.set_count(1001); }},
      {"unknown format", [](Job& job) { job.set_format(static_cast<internal::stored::ImageFormat>(9)); }},
      {"quality", [](Job& job) { job.set_quality(101); }},
      {"previews", [](Job& job) { job.set_partial_images(-1); }},
      {"priority", [](Job& job) { job.set_priority(11); }},
      {"patience", [](Job& job) { job.set_patience_us(0); }},
      {"key hash", [](Job& job) { job.set_idempotency_key_hash("short"); }},
      {"height", [](Job& job) { job.mutable_parameters()->set_height(0); }},
      {"width", [](Job& job) { job.mutable_parameters()->set_width(1 << 20); }},
      {"steps", [](Job& job) { job.mutable_parameters()->set_steps(-5); }},
      {"guidance", [=](Job& job) { job.mutable_parameters()->set_guidance_scale(nan); }},
      {"true cfg", [=](Job& job) { job.mutable_parameters()->set_true_cfg_scale(nan); }},
      {"rescale", [](Job& job) { job.mutable_parameters()->set_guidance_rescale(2); }},
      {"clip skip", [](Job& job) { job.mutable_parameters()->set_clip_skip(-1); }},
      {"layer", [](Job& job) { job.mutable_parameters()->add_skip_layers(-1); }},
      {"layer start", [](Job& job) { job.mutable_parameters()->set_skip_layer_start(0.9); }},
      {"crop", [](Job& job) { job.mutable_parameters()->set_crop_top(-1); }},
      {"NUL", [](Job& job) { job.mutable_parameters()->set_prompt(std::string("a\0b", 3)); }},
      {"long prompt", [](Job& job) { job.mutable_parameters()->set_prompt(std::string(40000, 'a')); }},
  };
  for (const auto& [what, change] : changes) {
    EXPECT_EQ(ParseStoredJob(Changed(change)).status().code(), absl::StatusCode::kDataLoss) << what;
  }
}

TEST(StoredJob, RefusesBytesCutShort) {
  const std::string bytes = *SerializeJob(SmallJob());
  int refused = 0;
  for (size_t size = 0; size < bytes.size(); ++size) refused += ParseStoredJob(bytes.substr(0, size)).ok() ? 0 : 1;
  // A cut between two fields at the end leaves a legal message.
  EXPECT_GT(refused, static_cast<int>(bytes.size()) * 3 / 4);
}

TEST(StoredJob, RefusesAFileOutsideTheResults) {
  for (const char* file : {"../secret", "/etc/passwd", "00/../../x", ""}) {
    const std::string bytes =
        SerializeImage({.origin = {.width = 8, .height = 8}, .file = file, .bytes = 1, .digest = std::string(32, 'd')});
    EXPECT_EQ(ParseStoredImage(bytes).status().code(), absl::StatusCode::kDataLoss) << file;
  }
}

TEST(TaskStates, MoveAsTheMachineSaysAndNotOtherwise) {
  // Rows: from; columns: to. Order of the enumeration.
  const bool legal[kTaskStates][kTaskStates] = {
      {false, true, false, true, true, false},  // queued
      {true, false, true, true, true, true},    // running
      {false, false, false, false, false, false}, {false, false, false, false, false, false},
      {false, false, false, false, false, false}, {false, false, false, false, false, false},
  };
  for (int from = 0; from < kTaskStates; ++from) {
    for (int to = 0; to < kTaskStates; ++to) {
      EXPECT_EQ(CheckMove(static_cast<TaskState>(from), static_cast<TaskState>(to)).ok(), legal[from][to])
          << from << " to " << to;
    }
  }
}

}  // namespace
}  // namespace tessera
