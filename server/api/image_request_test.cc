#include "server/api/image_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/fields/field_error.h"
#include "control/model/model_description.h"
#include "server/api/field_checks.h"
#include "server/api/job.h"
#include "server/api/job_request.h"
#include "server/api/request_fields.h"
#include "server/api/service_error.h"
#include "tests/support/fake_model.h"

namespace tessera::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ImageRequest Request() {
  ImageRequest request;
  request.prompt = "a";
  return request;
}

absl::StatusOr<JobRequest> Validated(const ImageRequest& request, const RequestLimits& limits = {}) {
  return ValidateImageRequest(request, {FakeModel()}, limits, 123);
}

TEST(ImageRequestTest, WhatIsAbsentIsTheModels) {
  const absl::StatusOr<JobRequest> job = Validated(Request());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model, "fake");
  EXPECT_EQ(job->parameters.width, 64);
  EXPECT_EQ(job->parameters.steps, 4);
  EXPECT_EQ(job->parameters.seed, 123u);
  EXPECT_EQ(job->count, 1);
  EXPECT_EQ(job->output, OutputOptions());
  EXPECT_EQ(job->timeout, std::nullopt);
}

TEST(ImageRequestTest, TheServersLimitsHoldInAdditionToTheModels) {
  ImageRequest request = Request();
  request.count = 3;
  EXPECT_THAT(std::string(Validated(request, {.max_images = 2}).status().message()),
              HasSubstr("valid values are 1 to 2"));
  request = Request();
  request.size = "512x512";
  const absl::Status pixels = Validated(request, {.max_pixels = 512 * 512 - 1}).status();
  EXPECT_EQ(ErrorField(pixels), "size");
  EXPECT_TRUE(Validated(request, {.max_pixels = 512 * 512}).ok());
  request = Request();
  request.steps = 100;
  EXPECT_EQ(ErrorField(Validated(request, {.max_steps = 99}).status()), "num_inference_steps");
}

TEST(ImageRequestTest, WhatTheModelRefusesHasTheNameOfTheApi) {
  const std::pair<absl::Status, std::pair<const char*, const char*>> cases[] = {
      {base::ErrorOfField("steps", " is 9; take fewer steps"),
       {"num_inference_steps", "num_inference_steps is 9; take fewer steps"}},
      {base::ErrorOfField("height", " is 12; it must be even"), {"size", "size: height is 12; it must be even"}},
      {base::ErrorOfField("skip_layer_start", " is 2"), {"skip_layer_start", "skip_layer_start is 2"}},
      {base::ErrorOfField("prompt_2", ": it is too long"), {"prompt_2", "prompt_2: it is too long"}},
      {base::ErrorOfField("stepsize", " is 9"), {"stepsize", "stepsize is 9"}},
      {absl::InvalidArgumentError("steps is 9; take fewer steps"), {"", "steps is 9; take fewer steps"}},
      {absl::InvalidArgumentError(""), {"", ""}},
  };
  for (const auto& [failure, expected] : cases) {
    const absl::Status status = ErrorOfFailedJob(failure);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << failure;
    EXPECT_EQ(ErrorField(status), expected.first) << failure;
    EXPECT_EQ(status.message(), expected.second) << failure;
  }
}

TEST(ImageRequestTest, CompressionIsTheQualityOfLossyFormatsAndNothingOfPng) {
  ImageRequest request = Request();
  request.output_format = "jpeg";
  EXPECT_EQ(Validated(request)->output.quality, std::nullopt);
  request.output_compression = 0;
  EXPECT_EQ(Validated(request)->output.quality, 1);
  request.output_compression = 100;
  EXPECT_EQ(Validated(request)->output.quality, 100);
  request.output_format = "png";
  EXPECT_EQ(Validated(request)->output.quality, std::nullopt);
}

TEST(ImageRequestTest, QualityIsAPresetOfStepsWithinWhatIsAllowed) {
  const std::map<std::string, int32_t> steps = {{"", 4},         {"auto", 4},  {"low", 2},     {"medium", 4},
                                                {"standard", 4}, {"high", 8},  {"hd", 8},      {"xhigh", 12},
                                                {"max", 16},     {"exact", 4}, {"lossless", 4}};
  for (const auto& [quality, expected] : steps) {
    ImageRequest request = Request();
    request.quality = quality;
    const absl::StatusOr<JobRequest> job = Validated(request);
    ASSERT_TRUE(job.ok()) << quality << job.status();
    EXPECT_EQ(job->parameters.steps, expected) << quality;
    // A quality with more steps than allowed gets the maximum.
    EXPECT_EQ(Validated(request, {.max_steps = 10})->parameters.steps, std::min(expected, 10)) << quality;
  }
}

TEST(ImageRequestTest, QualityChangesNoStepsOfADistilledModel) {
  control::ModelDescription distilled = *FakeModel("first").description;
  distilled.base_model = "another";
  ServedModel model = FakeModel("first");
  model.description = std::make_shared<const control::ModelDescription>(distilled);
  for (const char* quality : {"low", "high", "max"}) {
    ImageRequest request = Request();
    request.quality = quality;
    const absl::StatusOr<JobRequest> job = ValidateImageRequest(request, {model}, {}, 123);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->parameters.steps, 4) << quality;
  }
}

TEST(ImageRequestTest, TheUserIsWhoTheSafetyIdentifierSaysUnlessItIsEmpty) {
  ImageRequest request = Request();
  request.user = "a";
  EXPECT_EQ(Validated(request)->user, "a");
  request.safety_identifier = "b";
  EXPECT_EQ(Validated(request)->user, "b");
  request.safety_identifier = std::string(kMaxUserBytes + 1, 'b');
  EXPECT_EQ(ErrorField(Validated(request).status()), "safety_identifier");
}

TEST(ImageRequestTest, NamesOfOpenAisModelsAreTheDefaultModelsUnlessAnotherHasThem) {
  ServedModel first = FakeModel("first"), second = FakeModel("second");
  second.aliases = {"dall-e-3"};
  const auto found = [&](const std::string& name) -> std::string {
    const std::vector<ServedModel> models = {first, second};
    const absl::StatusOr<const ServedModel*> model = FindModel(name, models);
    return model.ok() ? (*model)->id : absl::StatusCodeToString(model.status().code());
  };
  EXPECT_EQ(found("gpt-image-1"), "NOT_FOUND");
  first.answers_to_openai_names = true;
  for (const char* name : {"gpt-image-1", "gpt-image-2.5-flare-2026-09-08", "chatgpt-image-latest", "dall-e-2"}) {
    EXPECT_EQ(found(name), "first") << name;
  }
  EXPECT_EQ(found("dall-e-3"), "second");
  for (const char* name : {"gpt-5", "gpt-image", "my-gpt-image-1", "sora-2", "GPT-IMAGE-1"}) {
    EXPECT_EQ(found(name), "NOT_FOUND") << name;
  }
}

TEST(ImageRequestTest, DefaultIsTheFirstModelUnlessAnotherHasTheName) {
  ServedModel first = FakeModel("first"), second = FakeModel("second");
  const auto found = [&](const std::string& name) -> std::string {
    const std::vector<ServedModel> models = {first, second};
    const absl::StatusOr<const ServedModel*> model = FindModel(name, models);
    return model.ok() ? (*model)->id : absl::StatusCodeToString(model.status().code());
  };
  EXPECT_EQ(found("default"), "first");
  EXPECT_EQ(found(""), "first");
  EXPECT_EQ(found("Default"), "NOT_FOUND");
  second.aliases = {"default"};
  EXPECT_EQ(found("default"), "second");
}

ServedModel ModelWithAdapters() {
  ServedModel model = FakeModel();
  model.adapters = {{.name = "grain", .digest = std::string(64, 'b')},
                    {.name = "style", .digest = std::string(64, 'a')}};
  return model;
}

TEST(ImageRequestTest, AnAdapterIsPinnedByTheDigestThatItHasNow) {
  ImageRequest request = Request();
  request.loras = {{.name = "style", .scale = 0.5}, {.name = "grain"}};
  const absl::StatusOr<JobRequest> job = ValidateImageRequest(request, {ModelWithAdapters()}, {}, 123);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->parameters.adapters,
              ElementsAre(control::AdapterUse{.name = "style", .scale = 0.5, .digest = std::string(64, 'a')},
                          control::AdapterUse{.name = "grain", .scale = 1, .digest = std::string(64, 'b')}));
}

TEST(ImageRequestTest, AnAdapterThatTheModelHasNotIsAnsweredWithTheNearest) {
  ImageRequest request = Request();
  request.loras = {{.name = "stile"}};
  const absl::Status unknown = ValidateImageRequest(request, {ModelWithAdapters()}, {}, 123).status();
  EXPECT_EQ(ErrorField(unknown), "loras");
  EXPECT_THAT(std::string(unknown.message()),
              HasSubstr("'stile' is unknown; valid values are grain, style; did you mean 'style'?"));
  request.loras = {{.name = "/data/style.safetensors"}};
  EXPECT_EQ(ErrorField(ValidateImageRequest(request, {ModelWithAdapters()}, {}, 123).status()), "loras");
  EXPECT_THAT(std::string(Validated(request).status().message()), HasSubstr("has no adapters here"));
  // The adapter belongs to another model.
  request.model = "other";
  request.loras = {{.name = "style"}};
  EXPECT_EQ(ErrorField(ValidateImageRequest(request, {ModelWithAdapters(), FakeModel("other")}, {}, 123).status()),
            "loras");
}

TEST(ImageRequestTest, TooManyAdaptersAreNotAllListedInAnError) {
  ServedModel model = FakeModel();
  for (int i = 0; i < 1000; ++i) {
    model.adapters.push_back({.name = "adapter-" + std::to_string(i), .digest = std::string(64, 'a')});
  }
  ImageRequest request = Request();
  request.loras = {{.name = "adapter-77x"}};
  const absl::Status unknown = ValidateImageRequest(request, {model}, {}, 123).status();
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("GET /v1/models lists the 1000 valid names; did you mean"));
  request = Request();
  request.model = "nothing";
  EXPECT_LT(ValidateImageRequest(request, {model}, {}, 123).status().message().size(), 2000u);
}

TEST(ImageRequestTest, TheNameOfAnAdapterAsModelSelectsItAtScaleOneUnlessAModelHasTheName) {
  ImageRequest request = Request();
  request.model = "style";
  request.loras = {{.name = "grain", .scale = 2}};
  const std::vector<ServedModel> models = {FakeModel("first"), ModelWithAdapters()};
  const absl::StatusOr<JobRequest> job = ValidateImageRequest(request, models, {}, 123);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->model, "fake");
  EXPECT_THAT(job->parameters.adapters,
              ElementsAre(control::AdapterUse{.name = "style", .scale = 1, .digest = std::string(64, 'a')},
                          control::AdapterUse{.name = "grain", .scale = 2, .digest = std::string(64, 'b')}));
  request.loras = {{.name = "style", .scale = 2}};
  EXPECT_THAT(std::string(ValidateImageRequest(request, models, {}, 123).status().message()),
              HasSubstr("'style' is given twice"));
  request.loras.clear();
  const std::vector<ServedModel> taken = {ModelWithAdapters(), FakeModel("style")};
  EXPECT_EQ(ValidateImageRequest(request, taken, {}, 123)->model, "style");
}

TEST(ImageRequestTest, RandomSeedsLeaveRoomForThoseThatCountUp) {
  for (int i = 0; i < 1000; ++i) EXPECT_LT(RandomSeed(), uint64_t{1} << 48);
  EXPECT_NE(RandomSeed(), RandomSeed());
}

// One change for every field of a request.
TEST(ImageRequestTest, TheDigestDiffersWithEveryField) {
  const std::vector<std::function<void(ImageRequest&)>> changes = {
      [](ImageRequest& r) {},
      [](ImageRequest& r) { r.model = "m"; },
      [](ImageRequest& r) { r.seed = 0; },
      [](ImageRequest& r) { r.count = 1; },
      [](ImageRequest& r) { r.size = "auto"; },
      [](ImageRequest& r) { r.quality = "auto"; },
      [](ImageRequest& r) { r.output_format = "png"; },
      [](ImageRequest& r) { r.output_compression = 1; },
      [](ImageRequest& r) { r.background = "auto"; },
      [](ImageRequest& r) { r.style = "auto"; },
      [](ImageRequest& r) { r.moderation = "auto"; },
      [](ImageRequest& r) { r.user = "auto"; },
      [](ImageRequest& r) { r.complexity = "low"; },
      [](ImageRequest& r) { r.safety_identifier = "auto"; },
      [](ImageRequest& r) { r.safety_identifier = "low"; },
      [](ImageRequest& r) { r.partial_images = 1; },
      [](ImageRequest& r) { r.priority = 1; },
      [](ImageRequest& r) { r.deadline_ms = 1; },
      [](ImageRequest& r) { r.prompt = "b"; },
      [](ImageRequest& r) { r.negative_prompt = ""; },
      [](ImageRequest& r) { r.prompt_2 = "b"; },
      [](ImageRequest& r) { r.prompt_3 = "b"; },
      [](ImageRequest& r) { r.negative_prompt_2 = "b"; },
      [](ImageRequest& r) { r.negative_prompt_3 = "b"; },
      [](ImageRequest& r) { r.steps = 1; },
      [](ImageRequest& r) { r.guidance_scale = 0; },
      [](ImageRequest& r) { r.sampler = "b"; },
      [](ImageRequest& r) { r.noise = "b"; },
      [](ImageRequest& r) { r.clean_caption = false; },
      [](ImageRequest& r) { r.resolution_binning = false; },
      [](ImageRequest& r) { r.max_sequence_length = 1; },
      [](ImageRequest& r) { r.true_cfg_scale = 0; },
      [](ImageRequest& r) { r.guidance_rescale = 0; },
      [](ImageRequest& r) { r.cfg_normalization = 0; },
      [](ImageRequest& r) { r.cfg_truncation = 0; },
      [](ImageRequest& r) { r.clip_skip = 0; },
      [](ImageRequest& r) { r.skip_layers = {1}; },
      [](ImageRequest& r) { r.skip_layer_scale = 0; },
      [](ImageRequest& r) { r.skip_layer_start = 0; },
      [](ImageRequest& r) { r.skip_layer_stop = 0; },
      [](ImageRequest& r) { r.original_width = 1; },
      [](ImageRequest& r) { r.original_height = 1; },
      [](ImageRequest& r) { r.crop_top = 1; },
      [](ImageRequest& r) { r.crop_left = 1; },
      [](ImageRequest& r) { r.loras = {{.name = "a"}}; },
      [](ImageRequest& r) { r.loras = {{.name = "a", .scale = 2}}; },
      [](ImageRequest& r) {
        r.loras = {{.name = "a"}, {.name = "b"}};
      },
      [](ImageRequest& r) {
        r.loras = {{.name = "b"}, {.name = "a"}};
      },
      // These characters would be confused if they moved from one field to the next.
      [](ImageRequest& r) { r.quality = "1:a;"; },
      [](ImageRequest& r) { r.size = "1:a;"; },
  };
  std::set<std::string> digests;
  for (const auto& change : changes) {
    ImageRequest request = Request();
    change(request);
    EXPECT_EQ(RequestDigest(request), RequestDigest(request));
    digests.insert(RequestDigest(request));
  }
  EXPECT_EQ(digests.size(), changes.size());
}

// The job store keeps digests with their idempotency keys, so a request must have the same digest in every version.
TEST(ImageRequestTest, TheDigestIsThatOfEarlierVersions) {
  ImageRequest request;
  request.prompt = "a red apple";
  EXPECT_EQ(RequestDigest(request), "981e11c0116922ccee9aa656f77566959c57aacb62e4120de5c3290b2b7ecedc");
  request = {.prompt = "a",
             .negative_prompt = "",
             .prompt_2 = "b",
             .prompt_3 = "c",
             .negative_prompt_2 = "d",
             .negative_prompt_3 = "e",
             .steps = 27,
             .guidance_scale = 3.7,
             .seed = 18446744073709551615u,
             .count = 3,
             .sampler = "euler",
             .noise = "torch-cpu",
             .clean_caption = true,
             .resolution_binning = false,
             .max_sequence_length = 222,
             .true_cfg_scale = 4.25,
             .guidance_rescale = -0.0,
             .clip_skip = 2,
             .skip_layers = {9, 7, 0},
             .skip_layer_scale = 1.9,
             .skip_layer_start = 0.02,
             .skip_layer_stop = 0.4,
             .original_width = 1100,
             .original_height = 700,
             .crop_top = 11,
             .crop_left = 13,
             .model = "flux",
             .size = "1024x768",
             .quality = "high",
             .complexity = "low",
             .output_format = "webp",
             .output_compression = 83,
             .background = "opaque",
             .style = "vivid",
             .moderation = "auto",
             .user = "alice",
             .safety_identifier = "bob",
             .partial_images = 2,
             .priority = -7,
             .deadline_ms = 61234};
  EXPECT_EQ(RequestDigest(request), "32bedfd1cf75726238ed86b3af90c1a4b24997f7c602dcbb204fb2664cad486d");
}

TEST(PreviewStepsTest, AreSpreadEvenlyAndNeverTheLast) {
  EXPECT_THAT(PreviewSteps(20, 3), ElementsAre(5, 10, 15));
  EXPECT_THAT(PreviewSteps(4, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(PreviewSteps(3, 3), ElementsAre(1, 2));
  EXPECT_THAT(PreviewSteps(1, 3), IsEmpty());
  EXPECT_THAT(PreviewSteps(20, 0), IsEmpty());
  for (int32_t steps = 1; steps < 60; ++steps) {
    for (int32_t wanted = 0; wanted <= kMaxPartialImages; ++wanted) {
      const std::vector<int32_t> after = PreviewSteps(steps, wanted);
      EXPECT_EQ(after.size(), static_cast<size_t>(std::min(wanted, steps - 1)));
      for (size_t i = 0; i < after.size(); ++i) {
        EXPECT_GE(after[i], i == 0 ? 1 : after[i - 1] + 1);
        EXPECT_LT(after[i], steps);
      }
    }
  }
}

}  // namespace
}  // namespace tessera::server
