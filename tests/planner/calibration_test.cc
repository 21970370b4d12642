// Tests how the measurements of a machine are stored, and the plans that are made from them.
#include "server/planning/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "control/model/model_description.h"
#include "server/planning/planner.h"
#include "tests/planner/known_models.h"

namespace tessera::server {
namespace {

using ::testing::HasSubstr;

// The output of a worker with two ranks. A rank is faster alone than while both are busy.
constexpr char kTwo[] =
    R"({"compute":[{"busy":1,"product_flops":5e10,"attention_flops":4e10,"memory_bytes_second":1e10,"operator_seconds":1e-6},)"
    R"({"busy":2,"product_flops":4e10,"attention_flops":3e10,"memory_bytes_second":6e9,"operator_seconds":2e-6}],)"
    R"("exchange":{"seconds":5e-5,"bytes_second":1e9,"sum_bytes_second":2e9}})";
constexpr char kOne[] =
    R"({"compute":[{"busy":1,"product_flops":8e10,"attention_flops":6e10,"memory_bytes_second":1e10,"operator_seconds":1e-6}]})";

CalibrationKey Key() {
  return {.worker = "tessera 1", .processor = "a processor", .threads = 2, .width = 1152, .heads = 16};
}

Calibration TwoRanks() {
  Calibration calibration = {.key = Key(), .shares = *SharesOf(1, kOne)};
  const std::vector<ProcessorShare> two = *SharesOf(2, kTwo);
  calibration.shares.insert(calibration.shares.end(), two.begin(), two.end());
  return calibration;
}

double StepOf(const char* layout, const Machine& machine, int64_t side = 512) {
  const PlannedImage work = {.width = static_cast<int32_t>(side),
                             .height = static_cast<int32_t>(side),
                             .steps = 4,
                             .dtype = control::Dtype::kFp32};
  return TimeOf(*parallel::ParseLayout(layout), KnownModel("pixart"), work, machine)->step;
}

TEST(CalibrationTest, WhatIsKeptIsReadBack) {
  const Calibration made = TwoRanks();
  const absl::StatusOr<Calibration> read = ParseCalibration(CalibrationText(made), Key());
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->shares.size(), 3u);
  EXPECT_EQ(CalibrationText(*read), CalibrationText(made));
  const ProcessorShare& busy = read->shares[2];
  EXPECT_EQ(busy.ranks, 2);
  EXPECT_EQ(busy.busy, 2);
  EXPECT_EQ(busy.product_flops, 4e10);
  EXPECT_EQ(busy.memory_bytes_second, 6e9);
  EXPECT_EQ(busy.link.bytes_per_second, 1e9);
  EXPECT_EQ(busy.link.sum_bytes_per_second, 2e9);
}

TEST(CalibrationTest, AnotherKeyHasAnotherFileAndIsRefused) {
  const std::string text = CalibrationText(TwoRanks());
  std::vector<CalibrationKey> others(6, Key());
  others[0].worker = "tessera 2";
  others[1].processor = "another";
  others[2].threads = 4;
  others[3].dtype = control::Dtype::kBf16;
  others[4].width = 3072;
  others[5].heads = 24;
  for (const CalibrationKey& other : others) {
    EXPECT_NE(CalibrationFileName(other), CalibrationFileName(Key()));
    EXPECT_EQ(ParseCalibration(text, other).status().code(), absl::StatusCode::kFailedPrecondition);
  }
}

TEST(CalibrationTest, WhatNoMachineReachesIsRefused) {
  const std::string text = CalibrationText(TwoRanks());
  const std::pair<const char*, const char*> planted[] = {
      {"\"product_flops\":8e+10", "\"product_flops\":0"},
      {"\"product_flops\":8e+10", "\"product_flops\":-1"},
      {"\"product_flops\":8e+10", "\"product_flops\":NaN"},
      {"\"product_flops\":8e+10", "\"product_flops\":\"fast\""},
      {"\"sum_bytes_second\"", "\"sum\""},
      {"\"busy\":2", "\"busy\":1"},
      {"\"exchange\"", "\"exchanges\""},
      {"\"groups\":[{", "\"groups\":[{\"compute\":[]},{"},
      {"1e-06}]},{", "1e-06},{"},
  };
  for (const auto& [from, to] : planted) {
    const std::string broken = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(broken, text) << from << " is not there: " << text;
    EXPECT_FALSE(ParseCalibration(broken, Key()).ok()) << to;
  }
}

TEST(CalibrationTest, AWorkerThatPrintsSomethingElseIsRefused) {
  for (const char* said : {"", "tessera-worker: no memory", "{}", kOne}) EXPECT_FALSE(SharesOf(2, said).ok()) << said;
  EXPECT_FALSE(SharesOf(1, kTwo).ok());
}

// The beginning of the output of workers that have a GPU each.
constexpr char kOfGpu[] = R"({"device":"H100","memory_bytes":85000000000,)";

Calibration TwoGpus() {
  Calibration calibration = {.key = Key(), .shares = *SharesOf(1, absl::StrCat(kOfGpu, &kOne[1]))};
  const std::vector<ProcessorShare> two = *SharesOf(2, absl::StrCat(kOfGpu, &kTwo[1]));
  calibration.shares.insert(calibration.shares.end(), two.begin(), two.end());
  return calibration;
}

// Ranks do not share a card, a group leaves the other cards to replicas, and a ring sends while it computes.
TEST(MeasuredGpusTest, EachRankHasACardOfItsOwn) {
  const absl::StatusOr<Calibration> read = ParseCalibration(CalibrationText(TwoGpus()), Key());
  ASSERT_TRUE(read.ok()) << read.status();
  const Machine machine = MachineOf(*read, 8e9);
  EXPECT_EQ(machine.name, "H100");
  EXPECT_EQ(machine.For(2, 2).memory_bytes, 85e9);
  EXPECT_EQ(machine.For(2, 2).product_flops, 4e10);
  EXPECT_EQ(machine.For(2, 2).link.bytes_per_second, 1e9);
  EXPECT_TRUE(machine.For(2, 2).link.hidden);
  const PlannedImage work = {.width = 512, .height = 512, .steps = 4, .dtype = control::Dtype::kBf16};
  const absl::StatusOr<Plans> plans =
      MakePlans({.model = KnownModel("pixart"), .work = work, .machine = machine, .devices = 2});
  ASSERT_TRUE(plans.ok()) << plans.status();
  int serial = 0;
  for (const Plan& plan : plans->plans) {
    EXPECT_EQ(plan.replicas, 2 / plan.layout.ranks());
    serial += plan.layout.ranks() == 1 ? 1 : 0;
  }
  EXPECT_EQ(serial, 1);
  const std::string text = CalibrationText(TwoGpus());
  for (const auto& [from, to] : {std::pair("\"device\":\"H100\"", "\"device\":\"\""), std::pair("8.5e+10", "0"),
                                 std::pair("\"memory_bytes\"", "\"memory\"")}) {
    const std::string broken = absl::StrReplaceAll(text, {{from, to}});
    EXPECT_NE(broken, text) << from << " is not there: " << text;
    EXPECT_FALSE(ParseCalibration(broken, Key()).ok()) << to;
  }
}

// Computed by hand: products and attention of half of the work, at the rates measured while two ranks are busy.
TEST(SharedProcessorsTest, RanksThatComputeAtOnceHaveTheRatesOfRanksThatDo) {
  const Machine machine = MachineOf(TwoRanks(), 8e9);
  const parallel::TokenFlops flops = KnownModel("pixart").cost.flops;
  const double products = flops.Products(1024, 120), attention = flops.Attention(1024, 120);
  const double tokens = 1024, activations = 28 * tokens * 1152 * 16 * 2 * 4;
  EXPECT_NEAR(StepOf("cfg=2", machine), products / 4e10 + attention / 3e10 + activations / 6e9,
              0.01 * StepOf("cfg=2", machine));
  EXPECT_NEAR(StepOf("serial", machine), 2 * (products / 8e10 + attention / 6e10 + activations / 1e10),
              1e-6 * StepOf("serial", machine));
}

// When the stages compute a whole image, only one of them computes at a time, with one rank's threads and the rest of
// the machine idle.
TEST(SharedProcessorsTest, AStageOfAWholeImageHasTheMachineForItself) {
  const Machine machine = MachineOf(TwoRanks(), 8e9);
  Calibration slower = TwoRanks();
  slower.shares[2].product_flops /= 4;
  EXPECT_EQ(StepOf("pipe=2", MachineOf(slower, 8e9)), StepOf("pipe=2", machine));
  slower.shares[1].product_flops /= 4;
  EXPECT_GT(StepOf("pipe=2", MachineOf(slower, 8e9)), 2 * StepOf("pipe=2", machine));
}

TEST(SharedProcessorsTest, WhatARingSendsIsNotHiddenWhereTheRanksThemselvesCopyIt) {
  Calibration slow = TwoRanks();
  for (ProcessorShare& share : slow.shares) share.link.bytes_per_second /= 2;
  const double before = StepOf("ring=2", MachineOf(TwoRanks(), 8e9)), after = StepOf("ring=2", MachineOf(slow, 8e9));
  const parallel::ForwardPass pass = {.image_tokens = 1024, .text_tokens = {120, 120}, .element_bytes = 4};
  const parallel::Mesh mesh = *parallel::Mesh::Create({.ring = 2}, 2);
  const control::ModelDescription model = KnownModel("pixart");
  const std::vector<int> bounds = {0, 28};
  const double bytes = static_cast<double>(parallel::PassBytes(model.transformer.exchange, mesh, bounds, 0, pass).ring);
  EXPECT_GT(after - before, 0.99 * bytes / 1e9);
}

TEST(SharedProcessorsTest, AGroupHasTheWholeHostAndItsRanksShareTheMemory) {
  const control::ModelDescription model = KnownModel("pixart");
  PlanRequest request = {.model = model, .work = {}, .machine = MachineOf(TwoRanks(), 50e9), .devices = 2};
  request.work = {.width = 512, .height = 512, .steps = 4, .dtype = control::Dtype::kFp32};
  const Plans plans = *MakePlans(request);
  for (const Plan& plan : plans.plans) {
    EXPECT_EQ(plan.replicas, 1) << parallel::LayoutText(plan.layout);
    EXPECT_EQ(plan.fits(), static_cast<double>(plan.memory_bytes) <= 50e9 / plan.layout.ranks());
  }
}

TEST(SharedProcessorsTest, ATextThatTheModelCannotReadIsRefused) {
  PlanRequest request = {
      .model = KnownModel("pixart"), .work = {}, .machine = MachineOf(TwoRanks(), 50e9), .devices = 2};
  request.work = {.width = 512, .height = 512, .steps = 4, .dtype = control::Dtype::kFp32, .text_tokens = 121};
  EXPECT_THAT(MakePlans(request).status().message(), HasSubstr("valid values of this model are 1 to 120"));
  request.work.text_tokens = 120;
  const double longest = MakePlans(request)->plans.front().time.step;
  request.work.text_tokens = 10;
  EXPECT_LT(MakePlans(request)->plans.front().time.step, longest);
}

}  // namespace
}  // namespace tessera::server
