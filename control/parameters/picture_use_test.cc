#include "control/parameters/picture_use.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "control/model/model_cost.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters_wire.h"

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

PictureUse Picture(char digit = 'a') { return {.digest = std::string(64, digit), .width = 96, .height = 80}; }

JobParameters Job(int images, bool mask, double strength = 1) {
  JobParameters job{.prompt = "a", .height = 64, .width = 64, .steps = 10, .strength = strength};
  for (int i = 0; i < images; ++i) job.images.push_back(Picture());
  if (mask) job.mask.push_back(Picture('b'));
  return job;
}

std::string ErrorOf(const JobParameters& job, PictureInput model) {
  return std::string(CheckPictures(job, model).message());
}

TEST(PictureUseTest, TravelsWithAJobAsItIs) {
  const JobParameters job = Job(2, true, 0.3);
  internal::JobParameters wire;
  ToWire(job, &wire);
  const JobParameters read = FromWire(wire);
  EXPECT_EQ(read.images, job.images);
  EXPECT_EQ(read.mask, job.mask);
  EXPECT_EQ(read.strength, 0.3);
  EXPECT_EQ(FromWire(internal::JobParameters()).strength, 1) << "jobs stored before there were pictures";
}

TEST(PictureUseTest, AJobHasOneMaskAtMostAndPicturesOfItsDigests) {
  JobParameters job = Job(1, true);
  job.guidance_scale = 1;
  EXPECT_TRUE(base::CheckFields(job).ok()) << base::CheckFields(job);
  job.mask.push_back(Picture());
  EXPECT_FALSE(base::CheckFields(job).ok());
  job = Job(1, false);
  job.images[0].digest = "../a";
  EXPECT_FALSE(base::CheckFields(job).ok());
  job.images[0] = Picture();
  job.images[0].file = "relative.png";
  EXPECT_FALSE(base::CheckFields(job).ok());
  job.images[0] = {.digest = std::string(64, 'a')};  // without a size
  EXPECT_FALSE(base::CheckFields(job).ok());
}

TEST(PictureUseTest, EachKindOfModelTakesItsPicturesAndRefusesOthersByName) {
  using enum PictureInput;
  for (const PictureInput model : {kNone, kStart, kReference}) EXPECT_EQ(ErrorOf(Job(0, false), model), "");
  EXPECT_EQ(ErrorOf(Job(1, false, 0.6), kStart), "");
  EXPECT_EQ(ErrorOf(Job(1, true, 0.6), kStart), "");
  EXPECT_EQ(ErrorOf(Job(1, true), kFill), "");
  EXPECT_EQ(ErrorOf(Job(1, false), kReference), "");
  EXPECT_THAT(ErrorOf(Job(1, false), kNone), HasSubstr("images are given; this model makes images from text alone"));
  EXPECT_THAT(ErrorOf(Job(0, true), kStart), HasSubstr("mask is given without an image"));
  EXPECT_THAT(ErrorOf(Job(0, false, 0.5), kStart), HasSubstr("strength is given without an image"));
  EXPECT_THAT(ErrorOf(Job(1, false, 0), kStart), HasSubstr("strength is 0; valid values are above 0"));
  EXPECT_THAT(ErrorOf(Job(2, false), kStart), HasSubstr("images are 2; this model takes one"));
  EXPECT_THAT(ErrorOf(Job(0, false), kFill), HasSubstr("images are missing"));
  EXPECT_THAT(ErrorOf(Job(1, false), kFill), HasSubstr("mask is missing"));
  EXPECT_THAT(ErrorOf(Job(1, true), kReference), HasSubstr("mask is given; this model takes an image without a mask"));
  EXPECT_THAT(ErrorOf(Job(1, false, 0.5), kReference), HasSubstr("only 1 is valid"));
}

TEST(PictureUseTest, StrengthLeavesStepsOutOfWhatIsExpected) {
  EXPECT_EQ(ExpectedSteps(Job(1, false, 0.6)), 6);
  EXPECT_EQ(ExpectedSteps(Job(1, false, 0.01)), 1);
  EXPECT_EQ(ExpectedSteps(Job(1, false, 1)), 10);
}

TEST(PictureUseTest, TokensOfReferencesCountAsText) {
  ModelCost cost{.token_side = 16, .text_tokens = 512, .reads_pictures = true};
  EXPECT_EQ(WorkOf(cost, Job(0, false)).text_tokens, 512);
  EXPECT_EQ(WorkOf(cost, Job(1, false)).text_tokens, 512 + 1104 / 16 * 944 / 16);
  cost.reads_pictures = false;
  EXPECT_EQ(WorkOf(cost, Job(1, false)).text_tokens, 512);
}

TEST(PictureUseTest, AnImageWithoutASizeHasThePicturesProportionsAndTheModelsArea) {
  const ModelDescription model{
      .size_multiple = 16, .min_size = 64, .max_size = 2048, .default_height = 1024, .default_width = 1024};
  EXPECT_EQ(SizeLike(model, {.height = 500, .width = 500}), (ImageSize{.height = 1024, .width = 1024}));
  EXPECT_EQ(SizeLike(model, {.height = 1080, .width = 1920}), (ImageSize{.height = 768, .width = 1360}));
  EXPECT_EQ(SizeLike(model, {.height = 1, .width = 16384}), (ImageSize{.height = 64, .width = 2048}));
}

}  // namespace
}  // namespace tessera::control
