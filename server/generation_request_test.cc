#include "server/generation_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

ModelDescription Model() {
  ModelDescription model;
  model.size_multiple = 16;
  model.min_size = 16;
  model.max_size = 2040;
  model.default_height = 512;
  model.default_width = 768;
  model.default_steps = 20;
  model.max_steps = 1000;
  model.default_guidance_scale = 4.5;
  model.default_max_sequence_length = 300;
  model.default_clean_caption = true;
  model.default_sampler = "dpmsolver++";
  model.samplers = {"ddim", "ddpm", "dpmsolver++", "euler"};
  return model;
}

std::string ErrorOf(const GenerationRequest& request, const ModelDescription& model = Model()) {
  const absl::StatusOr<JobParameters> job = Validate(request, model);
  if (job.ok()) return "";
  EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(job.status().message());
}

TEST(GenerationRequestTest, TakesTheModelsDefaultsForWhatIsAbsent) {
  const absl::StatusOr<JobParameters> job = Validate({.prompt = "a", .seed = 7}, Model());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->width, 768);
  EXPECT_EQ(job->height, 512);
  EXPECT_EQ(job->steps, 20);
  EXPECT_EQ(job->guidance_scale, 4.5);
  EXPECT_EQ(job->seed, 7u);
  EXPECT_EQ(job->max_sequence_length, 300);
  EXPECT_TRUE(job->clean_caption);
  EXPECT_FALSE(job->resolution_binning);
  EXPECT_EQ(job->sampler, "");
  EXPECT_EQ(job->noise, "tessera");
}

TEST(GenerationRequestTest, TakesWhatIsGivenOverTheDefaults) {
  const absl::StatusOr<JobParameters> job = Validate({.prompt = "a",
                                                      .negative_prompt = "b",
                                                      .width = 32,
                                                      .height = 64,
                                                      .steps = 1000,
                                                      .guidance_scale = 0,
                                                      .sampler = "euler",
                                                      .noise = "torch-cpu",
                                                      .clean_caption = false,
                                                      .max_sequence_length = 24},
                                                     Model());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->negative_prompt, "b");
  EXPECT_EQ(job->width, 32);
  EXPECT_EQ(job->height, 64);
  EXPECT_EQ(job->steps, 1000);
  EXPECT_EQ(job->guidance_scale, 0);
  EXPECT_EQ(job->sampler, "euler");
  EXPECT_EQ(job->noise, "torch-cpu");
  EXPECT_FALSE(job->clean_caption);
  EXPECT_EQ(job->max_sequence_length, 24);
}

TEST(GenerationRequestTest, NamesBothNeighboursOfASizeThatIsNoMultiple) {
  EXPECT_THAT(ErrorOf({.width = 100}), AllOf(HasSubstr("width is 100"), HasSubstr("multiples of 16 from 16 to 2032"),
                                             HasSubstr("the nearest are 96 and 112")));
}

TEST(GenerationRequestTest, NamesTheNearestEndOfTheRangeOfSizes) {
  EXPECT_THAT(ErrorOf({.height = 0}), AllOf(HasSubstr("height is 0"), HasSubstr("the nearest is 16")));
  EXPECT_THAT(ErrorOf({.height = -64}), AllOf(HasSubstr("height is -64"), HasSubstr("the nearest is 16")));
  // The largest multiple, not the largest size.
  EXPECT_THAT(ErrorOf({.width = std::numeric_limits<int64_t>::max()}), HasSubstr("the nearest is 2032"));
}

TEST(GenerationRequestTest, AcceptsAnySizeInRangeWhereSizesAreBinned) {
  ModelDescription model = Model();
  model.can_bin = true;
  EXPECT_EQ(ErrorOf({.width = 1001, .height = 999, .resolution_binning = true}, model), "");
  EXPECT_THAT(ErrorOf({.width = 5000, .resolution_binning = true}, model),
              AllOf(HasSubstr("legal are 16 to 2040"), Not(HasSubstr("multiple"))));
}

TEST(GenerationRequestTest, RefusesBinningForAModelWithoutATableOfSizes) {
  EXPECT_THAT(ErrorOf({.resolution_binning = true}), HasSubstr("no table of sizes"));
}

TEST(GenerationRequestTest, RefusesStepsOutOfRangeNamingTheNearest) {
  EXPECT_THAT(ErrorOf({.steps = 0}), HasSubstr("steps is 0; legal is 1 to 1000, the nearest is 1"));
  EXPECT_THAT(ErrorOf({.steps = 1001}), HasSubstr("steps is 1001; legal is 1 to 1000, the nearest is 1000"));
}

TEST(GenerationRequestTest, RefusesGuidanceThatIsNoNumberOrNegativeOrEndless) {
  EXPECT_THAT(ErrorOf({.guidance_scale = std::nan("")}), AllOf(HasSubstr("guidance is nan"), HasSubstr("4.5")));
  EXPECT_THAT(ErrorOf({.guidance_scale = -1}), AllOf(HasSubstr("guidance is -1"), HasSubstr("the nearest is 0")));
  EXPECT_THAT(ErrorOf({.guidance_scale = std::numeric_limits<double>::infinity()}), HasSubstr("guidance is inf"));
}

TEST(GenerationRequestTest, AcceptsAnEmptyPromptAndOneOfExactlyTheLargestLength) {
  EXPECT_EQ(ErrorOf({.prompt = ""}), "");
  EXPECT_EQ(ErrorOf({.prompt = std::string(kMaxPromptBytes, 'a')}), "");
}

TEST(GenerationRequestTest, SaysHowManyBytesAPromptHasTooMany) {
  EXPECT_THAT(ErrorOf({.prompt = std::string(kMaxPromptBytes + 1, 'a')}),
              HasSubstr("prompt has 32769 bytes; legal is at most 32768"));
}

TEST(GenerationRequestTest, NamesTheOffsetOfTheByteThatIsNotUtf8) {
  EXPECT_THAT(ErrorOf({.prompt = "caf\xC3\xA9 \xFF"}), HasSubstr("byte 0xff at offset 6"));
  EXPECT_THAT(ErrorOf({.negative_prompt = "\xC3"}), HasSubstr("negative prompt is not valid UTF-8"));
}

TEST(GenerationRequestTest, NamesTheOffsetOfANul) {
  EXPECT_THAT(ErrorOf({.prompt = std::string("ab\0c", 4)}), HasSubstr("NUL byte at offset 2"));
}

TEST(GenerationRequestTest, ProposesTheSamplerThatIsSpeltMostLikeTheUnknownOne) {
  EXPECT_THAT(ErrorOf({.sampler = "eluer"}),
              AllOf(HasSubstr("sampler 'eluer' is unknown"), HasSubstr("ddim, ddpm, dpmsolver++, euler"),
                    HasSubstr("did you mean 'euler'?")));
  EXPECT_THAT(ErrorOf({.sampler = "DDIM"}), HasSubstr("did you mean 'ddim'?"));
}

TEST(GenerationRequestTest, ProposesNothingForANameThatIsLikeNoOther) {
  EXPECT_THAT(ErrorOf({.sampler = "quux"}), Not(HasSubstr("did you mean")));
}

TEST(GenerationRequestTest, ShowsNoControlCharactersOfAnUnknownName) {
  EXPECT_THAT(ErrorOf({.sampler = "\x1B[2J\xFF"}), HasSubstr("'?[2J?'"));
}

TEST(GenerationRequestTest, RefusesAnUnknownNoise) {
  EXPECT_THAT(ErrorOf({.noise = "torch"}), AllOf(HasSubstr("noise 'torch'"), HasSubstr("tessera, torch-cpu")));
}

TEST(GenerationRequestTest, RefusesCountsOutOfRange) {
  EXPECT_THAT(ErrorOf({.count = 0}), HasSubstr("count is 0; legal is 1 to 1000"));
  EXPECT_THAT(ErrorOf({.count = 1001}), HasSubstr("the nearest is 1000"));
}

TEST(GenerationRequestTest, RefusesASeedFromWhichTheOthersCannotCountUp) {
  const uint64_t last = std::numeric_limits<uint64_t>::max();
  EXPECT_EQ(ErrorOf({.seed = last}), "");
  EXPECT_EQ(ErrorOf({.seed = last - 1, .count = 2}), "");
  EXPECT_THAT(ErrorOf({.seed = last, .count = 2}), HasSubstr("legal is at most 18446744073709551614"));
}

std::string ErrorOf(const PlacementRequest& request) {
  const absl::StatusOr<LoadParameters> placement = Validate(request, "model");
  return placement.ok() ? "" : std::string(placement.status().message());
}

TEST(PlacementRequestTest, AcceptsEveryLegalDevice) {
  for (const char* device : {"cpu", "cuda", "cuda:0", "cuda:15"}) EXPECT_EQ(ErrorOf({.device = device}), "") << device;
}

TEST(PlacementRequestTest, RefusesDevicesThatAreAlmostLegal) {
  for (const char* device : {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:x", "cuda:99999999999"}) {
    EXPECT_THAT(ErrorOf({.device = device}), HasSubstr("device")) << device;
  }
}

TEST(PlacementRequestTest, ProposesTheDtypeThatIsSpeltMostLikeTheUnknownOne) {
  EXPECT_THAT(ErrorOf({.dtype = "bf6"}), AllOf(HasSubstr("fp64, fp32, bf16"), HasSubstr("did you mean 'bf16'?")));
}

TEST(PlacementRequestTest, RefusesThreadsOutOfRange) {
  EXPECT_THAT(ErrorOf({.threads = -1}), HasSubstr("threads is -1; legal is 0 to 1024"));
}

}  // namespace
}  // namespace tessera
