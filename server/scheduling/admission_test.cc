// Tests of admission, predicted cost and learned speed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "control/model/group_share.h"
#include "control/model/model_cost.h"
#include "control/parameters/job_parameters.h"
#include "control/pictures/picture_input.h"
#include "server/scheduling/learned_speed.h"
#include "server/scheduling/request_scheduler.h"
#include "tests/scheduling/scheduler_simulation.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

const ShapeClass kSmall = {.model = "m", .height = 8, .width = 8};

class AdmissionTest : public testing::Test {
 protected:
  explicit AdmissionTest(const SchedulerOptions& options = Options()) : scheduler_(options) {
    scheduler_.capacity().SetModel("m", UnitCost());
    scheduler_.groups().Add({.id = 1, .model = "m", .max_rows = 4, .memory_bytes = 300});
    scheduler_.groups().OnReady(1);
  }

  // A step of a small task takes a second.
  static SchedulerOptions Options() {
    SchedulerOptions options;
    options.initial_flops_per_second = 64;
    options.max_waiting = 10;
    options.max_expected_wait = absl::Seconds(100);
    return options;
  }

  RequestScheduler scheduler_;
  absl::Time now_ = absl::FromUnixSeconds(1'800'000'000);
};

TEST_F(AdmissionTest, RefusesOverTheBoundOfWaitingTasksAtOnce) {
  ASSERT_TRUE(scheduler_.admission().Admit("a", kSmall, 5, 10, {}).status.ok());
  const Admission refused = scheduler_.admission().Admit("b", kSmall, 5, 1, {});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.expected_wait, absl::Seconds(5)) << "until one of five seconds is done";
}

TEST_F(AdmissionTest, RefusesOverTheBoundOfTheExpectedWait) {
  ASSERT_TRUE(scheduler_.admission().Admit("a", kSmall, 130, 1, {}).status.ok());
  const Admission refused = scheduler_.admission().Admit("b", kSmall, 5, 1, {});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.expected_wait, absl::Seconds(30));
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("130 s"));
}

TEST_F(AdmissionTest, ReturnsTheWaitOfAnAdmittedTask) {
  ASSERT_TRUE(scheduler_.admission().Admit("a", kSmall, 40, 1, {}).status.ok());
  EXPECT_EQ(scheduler_.admission().Admit("b", kSmall, 5, 1, {}).expected_wait, absl::Seconds(40));
}

TEST_F(AdmissionTest, BoundsTheTasksAndTheWorkOfAKey) {
  EXPECT_TRUE(scheduler_.admission().Admit("a", kSmall, 5, 2, {.max_waiting = 3}).status.ok());
  EXPECT_EQ(scheduler_.admission().Admit("a", kSmall, 5, 2, {.max_waiting = 3}).status.code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(scheduler_.admission().Admit("b", kSmall, 5, 2, {.max_waiting = 3}).status.ok())
      << "each key has its own";
  const Admission refused = scheduler_.admission().Admit("c", kSmall, 20, 1, {.max_device_seconds = 15});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(refused.expected_wait, absl::Seconds(5));
}

TEST_F(AdmissionTest, KeepsAPromiseUntilItIsUsedOrReleased) {
  const Admission promise = scheduler_.admission().Admit("a", kSmall, 5, 10, {});
  ASSERT_TRUE(promise.status.ok());
  SchedulerTask task = SmallTask(1, "a", 5);
  task.enqueued = now_;
  ASSERT_TRUE(scheduler_.Enqueue(task, now_, promise.ticket).ok());
  EXPECT_FALSE(scheduler_.admission().Admit("b", kSmall, 5, 1, {}).status.ok());
  scheduler_.admission().Release(promise.ticket);
  EXPECT_TRUE(scheduler_.admission().Admit("b", kSmall, 5, 9, {}).status.ok());
  EXPECT_FALSE(scheduler_.admission().Admit("b", kSmall, 5, 1, {}).status.ok());
  EXPECT_TRUE(scheduler_.CheckInvariants().ok()) << scheduler_.CheckInvariants();
}

TEST_F(AdmissionTest, TakesNoTicketTwiceAndNoneOfAnotherKey) {
  const Admission promise = scheduler_.admission().Admit("a", kSmall, 5, 1, {});
  EXPECT_EQ(scheduler_.Enqueue(SmallTask(1, "b", 5), now_, promise.ticket).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(scheduler_.Enqueue(SmallTask(1, "a", 5), now_, promise.ticket).ok());
  EXPECT_EQ(scheduler_.Enqueue(SmallTask(2, "a", 5), now_, promise.ticket).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(AdmissionTest, SaysWhetherTheBoundIsTheKeysOwn) {
  for (const KeyBounds& own : {KeyBounds{.max_waiting = 1}, KeyBounds{.max_device_seconds = 1e-9}}) {
    const Admission refused = scheduler_.admission().Admit("a", kSmall, 5, 2, own);
    EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_TRUE(refused.key_is_full);
  }
  const Admission refused = scheduler_.admission().Admit("a", kSmall, 5, 1'000'000, {});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(refused.key_is_full);
}

TEST_F(AdmissionTest, NeverRefusesARecoveredTask) {
  for (TaskId id = 1; id <= 50; ++id) ASSERT_TRUE(scheduler_.Enqueue(SmallTask(id, "a", 5), now_).ok());
  EXPECT_EQ(scheduler_.tasks().waiting(), 50);
}

TEST_F(AdmissionTest, SaysHowMuchMemoryAnImageNeedsThatFitsNowhere) {
  const Admission refused = scheduler_.admission().Admit("a", {.model = "m", .height = 64, .width = 64}, 5, 1, {});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("64x64"));
}

TEST_F(AdmissionTest, BatchesWhatIsFreeAndRefusesNothingForIt) {
  const auto batch = [&](double free_bytes) {
    RequestScheduler scheduler(Options());
    scheduler.capacity().SetModel("m", UnitCost());
    scheduler.groups().Add({.id = 1, .model = "m", .max_rows = 4, .memory_bytes = 300});
    scheduler.SetFreeMemory(1, free_bytes);
    scheduler.groups().OnReady(1);
    for (TaskId id = 1; id <= 4; ++id) EXPECT_TRUE(scheduler.Enqueue(SmallTask(id, "a", 5), now_).ok());
    EXPECT_TRUE(scheduler.admission().Admit("a", kSmall, 5, 1, {}).status.ok());
    return scheduler.steps().Next(1, now_).start.size();
  };
  const double one = control::PeakBytes(UnitCost(), kSmall.work(), 1, {});
  EXPECT_EQ(batch(0), 4u) << "it is not known";
  EXPECT_EQ(batch(2 * one), 2u);
  EXPECT_EQ(batch(one / 2), 1u);
}

TEST_F(AdmissionTest, WhatFitsNowhereOnceTheMemoryIsKnownWaitsNoLonger) {
  const ShapeClass large = {.model = "m", .height = 64, .width = 64};
  RequestScheduler scheduler(Options());
  scheduler.capacity().SetModel("m", UnitCost());
  for (GroupId group : {1, 2}) scheduler.groups().Add({.id = group, .model = "m", .max_rows = 4});
  const auto enqueue = [&](TaskId id, uint64_t ticket) {
    SchedulerTask task = SmallTask(id, "a", 5);
    task.shape = large;
    ASSERT_TRUE(scheduler.Enqueue(task, now_, ticket).ok());
  };
  const Admission early = scheduler.admission().Admit("a", large, 5, 1, {});
  ASSERT_TRUE(early.status.ok());
  enqueue(1, 0);
  ASSERT_TRUE(scheduler.Enqueue(SmallTask(2, "a", 5), now_).ok());
  EXPECT_TRUE(scheduler.TakeTooLarge().empty());

  scheduler.SetMemory(1, 300);
  EXPECT_TRUE(scheduler.TakeTooLarge().empty()) << "the other group may hold it";
  scheduler.SetMemory(2, 300);
  const auto taken = scheduler.TakeTooLarge();
  ASSERT_EQ(taken.size(), 1u);
  EXPECT_EQ(taken[0].first, 1u);
  EXPECT_EQ(taken[0].second.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(scheduler.tasks().waiting(), 1);

  enqueue(3, early.ticket);
  ASSERT_EQ(scheduler.TakeTooLarge().size(), 1u) << "it was admitted before";
  EXPECT_TRUE(scheduler.TakeTooLarge().empty());
  EXPECT_EQ(scheduler.CheckInvariants(), absl::OkStatus());
}

TEST_F(AdmissionTest, RefusesAModelWithoutGroups) {
  EXPECT_EQ(scheduler_.admission().Admit("a", {.model = "x", .height = 8, .width = 8}, 5, 1, {}).status.code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(AdmissionTest, CountsOnGroupsThatAreNotUpYet) {
  scheduler_.steps().OnGroupDied(1);
  EXPECT_TRUE(scheduler_.admission().Admit("a", kSmall, 5, 1, {}).status.ok());
}

// A model whose prompts have 100 tokens unless a job sets their number.
control::ModelCost Transformer() { return {.token_side = 16, .text_tokens = 100}; }

TEST(ShapeClasses, DifferByGuidanceBranchesAndNotBySamplers) {
  const control::ModelCost model = Transformer();
  control::JobParameters parameters{.height = 512, .width = 512, .steps = 20, .guidance_scale = 4.5, .sampler = "ddim"};
  const ShapeClass guided = ShapeOf("m", model, parameters);
  EXPECT_EQ(guided.rows, 2);
  parameters.sampler = "dpm++";
  parameters.steps = 7;
  parameters.seed = 9;
  parameters.guidance_scale = 7;
  EXPECT_EQ(ShapeOf("m", model, parameters), guided);
  parameters.guidance_scale = 1;
  EXPECT_EQ(ShapeOf("m", model, parameters).rows, 1);
  parameters.guidance_scale = 7;
  parameters.options.skip_layers.layers = {7};
  EXPECT_EQ(ShapeOf("m", model, parameters).rows, 3);
  EXPECT_NE(ShapeOf("m", model, parameters), guided) << "the branches are others";
}

TEST(ShapeClasses, CountNoBranchForAModelWithGuidanceAsInput) {
  control::ModelCost model = Transformer();
  model.guidance_is_input = true;
  control::JobParameters parameters{.height = 512, .width = 512, .steps = 20, .guidance_scale = 3.5};
  EXPECT_EQ(ShapeOf("m", model, parameters).rows, 1);
  parameters.negative_prompt = "";
  parameters.options.true_cfg_scale = 2;
  EXPECT_EQ(ShapeOf("m", model, parameters).rows, 2);
}

// Rows of a batch are padded to the longest text, so that a batch of different lengths would cost more than its tasks.
TEST(ShapeClasses, DifferByTheLengthOfTheText) {
  control::JobParameters parameters{.height = 512, .width = 512, .steps = 20};
  const ShapeClass usual = ShapeOf("m", Transformer(), parameters);
  EXPECT_EQ(usual.text_tokens, 100);
  parameters.max_sequence_length = 100;
  EXPECT_EQ(ShapeOf("m", Transformer(), parameters), usual);
  parameters.max_sequence_length = 60;
  EXPECT_NE(ShapeOf("m", Transformer(), parameters), usual);
}

TEST(ShapeClasses, AreOfTheSizeThatIsGenerated) {
  control::ModelCost model = Transformer();
  model.sizes.sizes = {{1, 1024, 1024}};
  control::JobParameters parameters{.height = 512, .width = 512, .steps = 20};
  EXPECT_EQ(ShapeOf("m", model, parameters).height, 512);
  parameters.resolution_binning = true;
  EXPECT_EQ(ShapeOf("m", model, parameters).height, 1024);
  EXPECT_EQ(ShapeOf("m", model, parameters).width, 1024);
}

TEST(ShapeClasses, DifferByTheAdaptersThatChangeTheImage) {
  const control::ModelCost model = Transformer();
  control::JobParameters plain{.height = 512, .width = 512, .steps = 20, .guidance_scale = 4.5, .sampler = "ddim"};
  control::JobParameters styled = plain, same = plain, stronger = plain, idle = plain;
  styled.adapters = {{.name = "style", .scale = 1, .digest = std::string(64, 'a')}};
  same.adapters = {{.name = "again", .scale = 1, .digest = std::string(64, 'a')}};
  stronger.adapters = {{.name = "style", .scale = 1.5, .digest = std::string(64, 'a')}};
  idle.adapters = {{.name = "style", .scale = 0, .digest = std::string(64, 'a')}};
  EXPECT_NE(ShapeOf("m", model, styled), ShapeOf("m", model, plain));
  EXPECT_EQ(ShapeOf("m", model, styled), ShapeOf("m", model, same)) << "the same file under another name";
  EXPECT_NE(ShapeOf("m", model, styled), ShapeOf("m", model, stronger));
  EXPECT_EQ(ShapeOf("m", model, idle), ShapeOf("m", model, plain));
}

control::JobParameters WithPictures(std::vector<control::ImageSize> sizes, bool has_mask = false) {
  control::JobParameters job{.height = 512, .width = 512, .steps = 20};
  for (const control::ImageSize& size : sizes) {
    job.images.push_back({.width = static_cast<int32_t>(size.width), .height = static_cast<int32_t>(size.height)});
  }
  if (has_mask) job.mask.push_back({.width = 8, .height = 8});
  return job;
}

TEST(ShapeClasses, DifferByTheTokensOfPicturesThatTheModelLooksAt) {
  control::ModelCost model = Transformer();
  model.references = control::ReferenceFit::kKontext;
  const auto shape = [&](std::vector<control::ImageSize> sizes) { return ShapeOf("m", model, WithPictures(sizes)); };
  EXPECT_EQ(shape({{1024, 1024}}), shape({{2000, 2000}})) << "both are resized to 1024x1024";
  EXPECT_NE(shape({{1024, 1024}}), shape({}));
  EXPECT_NE(shape({{1024, 1024}}), shape({{1024, 1024}, {1024, 1024}}));
  EXPECT_NE(shape({{1024, 1024}}), shape({{672, 1568}}));
  EXPECT_EQ(shape({{2000, 2000}}).pictures.pixels, 1024 * 1024);
  EXPECT_EQ(shape({{2000, 2000}, {672, 1568}}).pictures.pixels, 1024 * 1024 + 672 * 1568);
  EXPECT_EQ(shape({{2000, 2000}, {672, 1568}}).pictures.largest, 672 * 1568);
}

TEST(ShapeClasses, DoNotDifferByThePicturesThatImagesBeginFrom) {
  const ShapeClass text = ShapeOf("m", Transformer(), WithPictures({}));
  const ShapeClass begun = ShapeOf("m", Transformer(), WithPictures({{2000, 3000}}));
  EXPECT_EQ(text, begun);
  EXPECT_EQ(text.pictures.pixels, 0);
  EXPECT_EQ(begun.pictures.pixels, 512 * 512) << "it is stretched to the image's size";
  EXPECT_EQ(ShapeOf("m", Transformer(), WithPictures({{2000, 3000}}, /*has_mask=*/true)).pictures.pixels, 2 * 512 * 512)
      << "it is encoded with and without what the mask covers";
}

TEST_F(AdmissionTest, CountsTheEncodingOfPictures) {
  control::ModelCost model = UnitCost();
  model.decode_flops_per_pixel = 1;  // a small image: 64 operations
  scheduler_.capacity().SetModel("m", model);
  ShapeClass shape = kSmall;
  shape.pictures = {.pixels = 128, .largest = 64};
  EXPECT_EQ(scheduler_.capacity().CodecFlops(shape), 64 + 128);
  ASSERT_TRUE(scheduler_.admission().Admit("a", shape, 5, 1, {}).status.ok());
  EXPECT_EQ(scheduler_.admission().Admit("b", kSmall, 5, 1, {}).expected_wait, absl::Seconds(5 + 1 + 2));
}

TEST_F(AdmissionTest, RefusesPicturesThatFitNoMemory) {
  control::ModelCost model = UnitCost();
  model.decode_values_per_pixel = 0.5;  // 2 bytes of the 300
  scheduler_.capacity().SetModel("m", model);
  ShapeClass shape = kSmall;
  shape.pictures = {.pixels = 300, .largest = 150};
  EXPECT_TRUE(scheduler_.admission().Admit("a", shape, 5, 1, {}).status.ok());
  shape.pictures.largest = 151;
  const Admission refused = scheduler_.admission().Admit("a", shape, 5, 1, {});
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("8x8 from these pictures"));
}

TEST(LearnedSpeed, FollowsWhatItSees) {
  LearnedSpeed speed(1.0);
  EXPECT_EQ(speed.SecondsPerFlop(kSmall), 1.0);
  speed.Observe(kSmall, 100, 200);
  EXPECT_EQ(speed.SecondsPerFlop(kSmall), 2.0);
  for (int i = 0; i < 60; ++i) speed.Observe(kSmall, 100, 400);
  EXPECT_NEAR(speed.SecondsPerFlop(kSmall), 4, 0.01);
  const ShapeClass unseen = {.model = "m", .height = 9, .width = 9};
  EXPECT_NEAR(speed.SecondsPerFlop(unseen), 4, 0.01);
}

TEST(LearnedSpeed, IgnoresWhatIsNoSpeed) {
  LearnedSpeed speed(1.0);
  for (double seconds :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    speed.Observe(kSmall, 100, seconds);
  }
  speed.Observe(kSmall, 0, 1);
  EXPECT_EQ(speed.SecondsPerFlop(kSmall), 1.0);
}

}  // namespace
}  // namespace tessera::server
