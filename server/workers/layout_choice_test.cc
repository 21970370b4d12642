#include "server/workers/layout_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "control/model/model_description.h"
#include "control/parameters/placement.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

const parallel::LayoutModel kModel = {.heads = 4, .blocks = 6, .max_cfg_branches = 2, .usual_cfg_branches = 2};

std::string Choice(const LayoutRequest& request) {
  const absl::StatusOr<parallel::Layout> layout = ChooseLayout(request, kModel, "cpu", [] {
    ADD_FAILURE() << "a CPU has no links";
    return control::HostTopology();
  });
  return layout.ok() ? parallel::LayoutText(*layout) : std::string(layout.status().message());
}

TEST(LayoutChoiceTest, NothingAskedForIsOneRank) { EXPECT_EQ(Choice({}), "serial"); }

TEST(LayoutChoiceTest, ALayoutHasTheRanksItNames) {
  EXPECT_EQ(Choice({.layout = "ulysses=2, cfg=2"}), "cfg=2,ulysses=2");
  EXPECT_EQ(Choice({.layout = "cfg=2", .ranks = 2}), "cfg=2");
}

TEST(LayoutChoiceTest, ANumberOfRanksAloneMeansAuto) {
  EXPECT_EQ(Choice({.ranks = 1}), "serial");
  EXPECT_EQ(Choice({.ranks = 4}), "cfg=2,ulysses=2");
  EXPECT_EQ(Choice({.layout = "auto", .ranks = 4}), "cfg=2,ulysses=2");
}

TEST(LayoutChoiceTest, AutoKeepsUlyssesOnEachHost) {
  const auto choice = [](const std::string& devices) {
    parallel::LayoutModel model = kModel;
    model.usual_cfg_branches = 1;
    return parallel::LayoutText(*ChooseLayout({.ranks = 4}, model, devices, [] { return control::HostTopology(); }));
  };
  EXPECT_EQ(choice("cuda"), "ulysses=4");
  EXPECT_EQ(choice("a/cuda:0,a/cuda:1,b/cuda:0,b/cuda:1"), "ring=2,ulysses=2");
}

// FLUX.1's guidance scale is an input, so a second cfg rank would work only for requests with a true CFG scale.
TEST(LayoutChoiceTest, AutoSharesGuidanceWhereRequestsHaveIt) {
  control::ModelDescription model = {.default_guidance_scale = 4.5, .heads = 24, .blocks = 57};
  const auto choice = [&] {
    return parallel::LayoutText(*ChooseLayout({.ranks = 4}, LayoutModelOf(model, control::Dtype::kBf16), "cpu"));
  };
  EXPECT_EQ(choice(), "cfg=2,ulysses=2");
  model.cost.guidance_is_input = true;
  EXPECT_EQ(choice(), "ulysses=4");
  model.cost.guidance_is_input = false;
  model.default_guidance_scale = 0;
  EXPECT_EQ(choice(), "ulysses=4");
  EXPECT_TRUE(ChooseLayout({.layout = "cfg=2"}, LayoutModelOf(model, control::Dtype::kBf16), "cpu").ok());
}

TEST(LayoutChoiceTest, RefusesWhatNoGroupCanBe) {
  EXPECT_THAT(Choice({.ranks = 0}), HasSubstr("ranks is 0; valid values are 1 to 8, and the nearest is 1"));
  EXPECT_THAT(Choice({.ranks = 9}), HasSubstr("the nearest is 8"));
  EXPECT_THAT(Choice({.layout = "auto"}), HasSubstr("needs a number of ranks"));
  EXPECT_THAT(Choice({.layout = "ulyses=2"}), HasSubstr("ulyses"));
  EXPECT_THAT(Choice({.layout = "ring=0"}), HasSubstr("ring"));
}

TEST(LayoutChoiceTest, RefusesWhatTheModelCannotDoAndNamesWhatItCan) {
  EXPECT_THAT(Choice({.layout = "ulysses=3"}), HasSubstr("ring=3"));
  EXPECT_THAT(Choice({.layout = "cfg=2", .ranks = 4}), HasSubstr("cfg=2,ulysses=2"));
}

TEST(LayoutChoiceTest, AModelHasDistilledStepsIfItIsDistilled) {
  control::ModelDescription model = {.default_steps = 4};
  EXPECT_EQ(LayoutModelOf(model, control::Dtype::kBf16).distilled_steps, 0);
  model.base_model = "another";
  EXPECT_EQ(LayoutModelOf(model, control::Dtype::kBf16).distilled_steps, 4);
}

TEST(LayoutChoiceTest, CountsTheTransformersWeightsApart) {
  control::ModelDescription model = {.heads = 4, .blocks = 6};
  model.components = {{.name = "transformer", .role = control::ComponentRole::kTransformer, .parameters = 100},
                      {.name = "vae", .role = control::ComponentRole::kAutoencoder, .parameters = 30},
                      {.name = "text_encoder", .role = control::ComponentRole::kTextEncoder, .parameters = 20}};
  const parallel::LayoutModel numbers = LayoutModelOf(model, control::Dtype::kBf16);
  EXPECT_EQ(numbers.block_bytes, 200u);
  EXPECT_EQ(numbers.other_bytes, 100u);
  EXPECT_EQ(LayoutModelOf(model, control::Dtype::kFp64).block_bytes, 800u);
}

}  // namespace
}  // namespace tessera::server
