#include "control/parameters/job_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <type_traits>
#include <vector>

#include "base/fields/field_error.h"
#include "control/parameters/job_parameters_wire.h"
#include "control/pictures/picture_input.h"

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

// Sets a value that is within every bound and is not the default of any field.
void Change(std::string& value) { value = "x"; }
void Change(std::optional<std::string>& value) { value = "x"; }
void Change(NoiseKind& value) { value = NoiseKind::kTorchCpu; }
void Change(bool& value) { value = true; }
void Change(int32_t& value) { value = 9; }
void Change(uint64_t& value) { value = 9; }
void Change(double& value) { value = 0.125; }
void Change(std::vector<int32_t>& value) { value = {9, 3}; }

void Change(std::vector<AdapterUse>& value) {
  value = {{.name = "x", .scale = 0.125, .digest = std::string(64, 'a'), .file = "/x"}};
}

void Change(std::vector<PictureUse>& value) {
  value = {{.digest = std::string(64, 'a'), .width = 9, .height = 3, .file = "/x"}};
}

std::vector<std::string> Ids() {
  std::vector<std::string> ids;
  base::ForEachFieldOf<JobParameters>([&](const auto& field) { ids.emplace_back(field.name); });
  return ids;
}

// The names of the parameters in which two jobs differ.
std::vector<std::string> Differences(const JobParameters& a, const JobParameters& b) {
  std::vector<std::string> ids;
  base::ForEachField(
      [&](const auto& field, const auto& one, const auto& other) {
        if (one != other) ids.emplace_back(field.name);
      },
      a, b);
  return ids;
}

TEST(JobParametersTest, EveryMemberIsWalked) {
  // These stop compiling when a member is added: it also needs a line in FieldsOf.
  [[maybe_unused]] const auto& [j1, j2, j3, j4, j5, j6, j7, j8, j9, j10, j11, j12, j13, j14, j15, j16, j17] =
      JobParameters();
  [[maybe_unused]] const auto& [o1, o2, o3, o4, o5, o6, o7, o8, o9, o10, o11] = PromptOptions();
  [[maybe_unused]] const auto& [l1, l2, l3, l4] = SkipLayerGuidance();
  [[maybe_unused]] const auto& [s1, s2, s3, s4] = OriginalSize();
  EXPECT_EQ(Ids().size(), (17u - 1) + (11u - 2) + 4u + 4u);
}

TEST(JobParametersTest, TheMessageHasTheFieldsOfTheWalkAndNoOthers) {
  const google::protobuf::Descriptor& message = *internal::JobParameters::descriptor();
  std::set<std::string> fields;
  for (int i = 0; i < message.field_count(); ++i) fields.insert(message.field(i)->name());
  const std::vector<std::string> ids = Ids();
  EXPECT_EQ(fields, std::set<std::string>(ids.begin(), ids.end()));
}

TEST(JobParametersTest, EveryFieldTravels) {
  for (const std::string& changed : Ids()) {
    JobParameters sent;
    const auto change = [&](const auto& field, auto& value) {
      if (field.name == changed) Change(value);
    };
    base::ForEachField(change, sent);
    internal::JobParameters wire;
    ToWire(sent, &wire);
    const JobParameters heard = FromWire(wire);
    EXPECT_EQ(Differences(sent, JobParameters()), std::vector<std::string>{changed});
    EXPECT_EQ(Differences(heard, JobParameters()), std::vector<std::string>{changed});
    EXPECT_TRUE(Differences(sent, heard).empty()) << changed;
  }
}

TEST(JobParametersTest, AnAbsentFieldHasItsDefault) {
  internal::JobParameters wire;
  wire.set_noise("tessera");
  EXPECT_TRUE(Differences(FromWire(wire), JobParameters()).empty());
}

TEST(JobParametersTest, ANoiseThatDoesNotExistIsRefusedWithTheValidOnes) {
  const JobParameters job{.prompt = "a", .height = 8, .width = 8, .steps = 1, .guidance_scale = 1};
  internal::JobParameters wire;
  ToWire(job, &wire);
  EXPECT_TRUE(base::CheckFields(FromWire(wire)).ok());
  wire.set_noise("white");
  EXPECT_EQ(base::CheckFields(FromWire(wire)),
            base::ErrorOfField("noise", " is unknown; valid values are tessera, torch-cpu"));
}

TEST(JobParametersTest, WhatIsOutOfBoundsIsNamedByItsId) {
  JobParameters job{.prompt = "a", .height = 8, .width = 8, .steps = 1, .guidance_scale = 1};
  EXPECT_TRUE(base::CheckFields(job).ok()) << base::CheckFields(job);
  job.options.guidance_rescale = 1.5;
  EXPECT_EQ(base::CheckFields(job),
            base::ErrorOfField("guidance_rescale", " is 1.5; it must be a number from 0 to 1, the nearest is 1"));
  job.options.guidance_rescale = 0;
  job.options.skip_layers.start = 0.5;
  EXPECT_THAT(std::string(base::CheckFields(job).message()),
              HasSubstr("skip_layer_start is 0.5; valid values are at most the stop, "));
}

PictureUse Picture(char digit = 'a') { return {.digest = std::string(64, digit), .width = 96, .height = 80}; }

JobParameters Job(int images, bool mask, double strength = 1) {
  JobParameters job{.prompt = "a", .height = 64, .width = 64, .steps = 10, .strength = strength};
  for (int i = 0; i < images; ++i) job.images.push_back(Picture());
  if (mask) job.mask.push_back(Picture('b'));
  return job;
}

std::string ErrorOf(const JobParameters& job, PictureInput model) {
  return std::string(CheckPictures(job, UsualRules(model)).message());
}

TEST(JobParametersTest, TravelsWithAJobAsItIs) {
  const JobParameters job = Job(2, true, 0.3);
  internal::JobParameters wire;
  ToWire(job, &wire);
  const JobParameters read = FromWire(wire);
  EXPECT_EQ(read.images, job.images);
  EXPECT_EQ(read.mask, job.mask);
  EXPECT_EQ(read.strength, 0.3);
  EXPECT_EQ(FromWire(internal::JobParameters()).strength, 1) << "jobs stored before there were pictures";
}

TEST(JobParametersTest, AJobHasOneMaskAtMostAndPicturesOfItsDigests) {
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

TEST(JobParametersTest, EachKindOfModelTakesItsPicturesAndRefusesOthersByName) {
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

TEST(JobParametersTest, AModelThatLooksAtSeveralPicturesBeginsFromTheFirstWithAMask) {
  const PictureRules rules = {
      .use = PictureInput::kReference, .most = 3, .fit = ReferenceFit::kFlux2, .mask = MaskRule::kMiddlePixels};
  const auto error = [&](const JobParameters& job) { return std::string(CheckPictures(job, rules).message()); };
  for (const int images : {0, 1, 3}) EXPECT_EQ(error(Job(images, false)), "");
  EXPECT_EQ(error(Job(2, true, 0.5)), "");
  EXPECT_THAT(error(Job(4, false)), HasSubstr("images are 4; this model takes at most 3"));
  EXPECT_THAT(error(Job(1, false, 0.5)), HasSubstr("without a mask this model looks at images and begins from noise"));
  JobParameters job = Job(2, false);
  job.images[1].height = 40;
  EXPECT_THAT(error(job), HasSubstr("images: a picture has 96x40 pixels; valid are sides of 64"));
  job.images[1] = {.digest = std::string(64, 'a')};
  EXPECT_EQ(error(job), "") << "the size of a placeholder is not known yet";
}

TEST(JobParametersTest, AModelThatEditsPicturesNeedsOne) {
  const PictureRules rules = {
      .use = PictureInput::kReference, .most = 3, .fit = ReferenceFit::kFlux2, .required = true};
  EXPECT_THAT(std::string(CheckPictures(Job(0, false), rules).message()), HasSubstr("images are missing; this model"));
  EXPECT_TRUE(CheckPictures(Job(1, false), rules).ok());
}

TEST(JobParametersTest, QwenImageEditTakesOnePictureAndEditPlusUpToThree) {
  const auto error = [](int images, const PictureRules& rules) {
    return std::string(CheckPictures(Job(images, false), rules).message());
  };
  EXPECT_THAT(error(0, kQwenEditPictures), HasSubstr("images are missing; this model edits images"));
  EXPECT_EQ(error(1, kQwenEditPictures), "");
  EXPECT_THAT(error(2, kQwenEditPictures), HasSubstr("images are 2; this model takes one"));
  EXPECT_EQ(error(3, kQwenEditPlusPictures), "");
  EXPECT_THAT(error(4, kQwenEditPlusPictures), HasSubstr("images are 4; this model takes at most 3"));
}

TEST(JobParametersTest, StrengthLeavesStepsOutOfWhatIsExpected) {
  EXPECT_EQ(ExpectedSteps(Job(1, false, 0.6)), 6);
  EXPECT_EQ(ExpectedSteps(Job(1, false, 0.01)), 1);
  EXPECT_EQ(ExpectedSteps(Job(1, false, 1)), 10);
}

}  // namespace
}  // namespace tessera::control
