#include "server/jobs/stored_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <string>
#include <vector>

#include "server/api/job.h"
#include "tessera/internal/stored_job.pb.h"
#include "tests/jobs/job_workload.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

StoredJob SmallJob() { return {.tenant = "alice", .request = SmallRequest(2)}; }

// Returns the stored bytes of a small job after `change`.
std::string Changed(const std::function<void(internal::stored::Job&)>& change) {
  internal::stored::Job message;
  EXPECT_TRUE(message.ParseFromString(*SerializeJob(SmallJob())));
  change(message);
  return message.SerializeAsString();
}

// Rows recorded by version 0.1.0, with every field set, before StartJob and the store shared one message.
std::string Recorded(const std::string& name) {
  std::ifstream file("tests/jobs/stored/" + name, std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(StoredJob, LoadsAndWritesWhatWasRecordedBeforeToTheByte) {
  const std::string bytes = Recorded("job_every_field");
  const absl::StatusOr<StoredJob> job = ParseStoredJob(bytes);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->tenant, "alice");
  EXPECT_EQ(job->trace_parent, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01");
  EXPECT_EQ(job->idempotency_key_hash, std::string(32, 'k'));
  EXPECT_EQ(job->request.model, "flux");
  EXPECT_EQ(job->request.count, 3);
  EXPECT_EQ(job->request.output, (OutputOptions{.format = ImageFormat::kWebp, .quality = 83}));
  EXPECT_EQ(job->request.partial_images, 2);
  EXPECT_EQ(job->request.priority, -7);
  EXPECT_EQ(job->request.timeout, absl::Milliseconds(61234));
  EXPECT_EQ(job->request.user, "a label");
  const control::JobParameters& parameters = job->request.parameters;
  EXPECT_EQ(parameters.prompt, "ein roter Apfel, auf einer B\xC3\xBChne");
  EXPECT_EQ(parameters.negative_prompt, "");
  EXPECT_EQ(parameters.height, 768);
  EXPECT_EQ(parameters.width, 1024);
  EXPECT_EQ(parameters.steps, 27);
  EXPECT_EQ(parameters.guidance_scale, 3.7);
  EXPECT_EQ(parameters.seed, 0xFEDCBA9876543210);
  EXPECT_EQ(parameters.sampler, "euler");
  EXPECT_EQ(parameters.noise, control::NoiseKind::kTorchCpu);
  EXPECT_TRUE(parameters.clean_caption);
  EXPECT_TRUE(parameters.resolution_binning);
  EXPECT_EQ(parameters.max_sequence_length, 222);
  EXPECT_EQ(parameters.options,
            (control::PromptOptions{.prompt_2 = "second",
                                    .prompt_3 = "third",
                                    .negative_prompt_2 = "no second",
                                    .negative_prompt_3 = "no third",
                                    .true_cfg_scale = 4.25,
                                    .guidance_rescale = 0.3,
                                    .clip_skip = 2,
                                    .skip_layers = {.layers = {9, 7, 0}, .scale = 1.9, .start = 0.02, .stop = 0.4},
                                    .original_size = {.height = 700, .width = 1100, .crop_top = 11, .crop_left = 13}}));
  EXPECT_EQ(SerializeJob(*job).value_or(""), bytes);
}

TEST(StoredImage, LoadsAndWritesWhatWasRecordedBeforeToTheByte) {
  const std::string bytes = Recorded("image_every_field");
  const absl::StatusOr<StoredImage> image = ParseStoredImage(bytes);
  ASSERT_TRUE(image.ok()) << image.status();
  EXPECT_EQ(image->origin.width, 1024);
  EXPECT_EQ(image->origin.height, 768);
  EXPECT_EQ(image->origin.format, ImageFormat::kJpeg);
  EXPECT_EQ(image->origin.layout, "cfg=2,ulysses=2");
  EXPECT_FALSE(image->origin.lossless);
  EXPECT_EQ(image->origin.warnings, (std::vector<std::string>{"one", "two"}));
  EXPECT_EQ(image->file, "00/11-1");
  EXPECT_EQ(image->bytes, 123456u);
  EXPECT_EQ(image->digest, std::string(32, 'd'));
  EXPECT_EQ(SerializeImage(*image), bytes);
}

TEST(StoredJob, IgnoresFieldsOfANewerProgram) {
  const std::string bytes = *SerializeJob(SmallJob()) + "\xf2\x3e\x03new";  // field 1006, three bytes
  const absl::StatusOr<StoredJob> job = ParseStoredJob(bytes);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->request.parameters.prompt, "red apple");
}

TEST(StoredJob, RefusesWhatANewerProgramSaysMustNotBeMisread) {
  const absl::Status status = ParseStoredJob(Changed([](auto& job) { job.set_minimum_reader(5); })).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("newer version"));
}

TEST(StoredJob, KeepsAdaptersByTheirContentAndIsRefusedByProgramsThatKnowNone) {
  StoredJob kept = SmallJob();
  std::vector<control::AdapterUse>& adapters = kept.request.parameters.adapters;
  adapters = {{.name = "style", .scale = -0.5, .digest = std::string(64, 'a'), .file = "/here/style.safetensors"},
              {.name = "grain", .scale = 2, .digest = std::string(64, 'b'), .file = "/here/grain.safetensors"}};
  const absl::StatusOr<std::string> bytes = SerializeJob(kept);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  internal::stored::Job message;
  ASSERT_TRUE(message.ParseFromString(*bytes));
  EXPECT_EQ(message.minimum_reader(), 2u);
  const absl::StatusOr<StoredJob> read = ParseStoredJob(*bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  for (control::AdapterUse& adapter : adapters) adapter.file.clear();
  EXPECT_EQ(read->request.parameters.adapters, adapters);

  ASSERT_TRUE(message.ParseFromString(*SerializeJob(SmallJob())));
  EXPECT_EQ(message.minimum_reader(), 1u) << "programs that know no adapters take a job without any";
}

TEST(StoredJob, KeepsLimitsOfGuidanceAndIsRefusedByProgramsThatKnowNone) {
  for (const control::PromptOptions& options :
       {control::PromptOptions{.cfg_normalization = 1.25}, control::PromptOptions{.cfg_truncation = 0.75}}) {
    StoredJob kept = SmallJob();
    kept.request.parameters.options = options;
    const absl::StatusOr<std::string> bytes = SerializeJob(kept);
    ASSERT_TRUE(bytes.ok()) << bytes.status();
    internal::stored::Job message;
    ASSERT_TRUE(message.ParseFromString(*bytes));
    EXPECT_EQ(message.minimum_reader(), 4u);
    const absl::StatusOr<StoredJob> read = ParseStoredJob(*bytes);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->request.parameters.options, options);
  }
}

TEST(StoredJob, KeepsPicturesByTheirContentAndIsRefusedByProgramsThatKnowNone) {
  StoredJob kept = SmallJob();
  control::JobParameters& parameters = kept.request.parameters;
  parameters.images = {{.digest = std::string(64, 'a'), .width = 96, .height = 80, .file = "/here/a"}};
  parameters.mask = {{.digest = std::string(64, 'b'), .width = 96, .height = 80, .file = "/here/b"}};
  parameters.strength = 0.4;
  const absl::StatusOr<std::string> bytes = SerializeJob(kept);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  internal::stored::Job message;
  ASSERT_TRUE(message.ParseFromString(*bytes));
  EXPECT_EQ(message.minimum_reader(), 3u);
  const absl::StatusOr<StoredJob> read = ParseStoredJob(*bytes);
  ASSERT_TRUE(read.ok()) << read.status();
  parameters.images[0].file.clear();
  parameters.mask[0].file.clear();
  EXPECT_EQ(read->request.parameters.images, parameters.images);
  EXPECT_EQ(read->request.parameters.mask, parameters.mask);
  EXPECT_EQ(read->request.parameters.strength, 0.4);
}

TEST(StoredJob, RefusesAdaptersThatNoValidatorWouldHavePassed) {
  StoredJob job = SmallJob();
  job.request.parameters.adapters = {{.name = "../style", .scale = 1, .digest = std::string(64, 'a')}};
  EXPECT_EQ(SerializeJob(job).status().code(), absl::StatusCode::kInvalidArgument);
  const std::string damaged = Changed([](internal::stored::Job& message) {
    internal::AdapterUse& adapter = *message.mutable_parameters()->add_loras();
    adapter.set_name("style");
    adapter.set_scale(17);
    adapter.set_digest(std::string(64, 'a'));
  });
  EXPECT_EQ(ParseStoredJob(damaged).status().code(), absl::StatusCode::kDataLoss);
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
  EXPECT_EQ(job->request.parameters.options, control::PromptOptions());
}

TEST(StoredJob, LeavesNothingOfTheJobThatWasReadIntoTheSameMemoryBefore) {
  StoredJob job;
  ASSERT_EQ(ParseStoredJob(Recorded("job_every_field"), job), absl::OkStatus());
  const std::string small = *SerializeJob(SmallJob());
  ASSERT_EQ(ParseStoredJob(small, job), absl::OkStatus());
  EXPECT_EQ(job.request.parameters.negative_prompt, std::nullopt);
  EXPECT_EQ(job.request.timeout, std::nullopt);
  EXPECT_EQ(*SerializeJob(job), small);
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
      {"timeout", [](Job& job) { job.set_timeout_us(0); }},
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
  // A cut between two fields at the end leaves a valid message.
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
  // Rows: from; columns: to. Both are in the order of the enumeration.
  const bool valid[kTaskStates][kTaskStates] = {
      {false, true, false, true, true, false},  // queued
      {true, false, true, true, true, true},    // running
      {false, false, false, false, false, false}, {false, false, false, false, false, false},
      {false, false, false, false, false, false}, {false, false, false, false, false, false},
  };
  for (int from = 0; from < kTaskStates; ++from) {
    for (int to = 0; to < kTaskStates; ++to) {
      EXPECT_EQ(CheckMove(static_cast<TaskState>(from), static_cast<TaskState>(to)).ok(), valid[from][to])
          << from << " to " << to;
    }
  }
}

}  // namespace
}  // namespace tessera::server
