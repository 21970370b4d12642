#include "control/parameters/job_parameters.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <type_traits>
#include <vector>

#include "base/fields/field_error.h"
#include "control/parameters/job_parameters_wire.h"

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
  [[maybe_unused]] const auto& [o1, o2, o3, o4, o5, o6, o7, o8, o9] = PromptOptions();
  [[maybe_unused]] const auto& [l1, l2, l3, l4] = SkipLayerGuidance();
  [[maybe_unused]] const auto& [s1, s2, s3, s4] = OriginalSize();
  EXPECT_EQ(Ids().size(), (17u - 1) + (9u - 2) + 4u + 4u);
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

}  // namespace
}  // namespace tessera::control
