// Tests `tessera plan` with a worker that needs no model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/front/command_line_fixture.h"

namespace tessera {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

class PlanCommandTest : public CommandLineTest {
 protected:
  // The worker dies if it has to load the model, because planning must not read weights.
  Result Plan(std::vector<std::string> more) {
    more.insert(more.begin(), "plan");
    return Run(more, "load=die");
  }

  boost::json::object PlanJson(std::vector<std::string> more) {
    more.emplace_back("--json");
    const Result result = Plan(more);
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    const std::vector<boost::json::object> events = Events(result.output);
    EXPECT_EQ(events.size(), 1u);
    return events.empty() ? boost::json::object() : events[0];
  }
};

TEST_F(PlanCommandTest, TheJsonObjectHasEveryPlanAndTheOneToUse) {
  const boost::json::object plan = PlanJson({"--gpus", "2", "--link", "nvlink", "--steps", "10"});
  EXPECT_EQ(plan.at("event"), "plan");
  EXPECT_EQ(plan.at("gpu"), "H100");
  EXPECT_EQ(plan.at("gpus"), 2);
  EXPECT_EQ(plan.at("link"), "nvlink");
  EXPECT_EQ(plan.at("dtype"), "bf16");
  EXPECT_EQ(plan.at("steps"), 10);
  EXPECT_TRUE(plan.at("slo_seconds").is_null());
  EXPECT_FALSE(plan.at("reason").as_string().empty());
  const boost::json::array& plans = plan.at("plans").as_array();
  EXPECT_EQ(static_cast<int64_t>(plans.size()), plan.at("layouts_timed").as_int64());
  EXPECT_EQ(plan.at("recommended").at("layout"), plans.at(0).at("layout"));
  double before = 0;
  for (const boost::json::value& one : plans) {
    for (const char* field : {"seconds", "prompt_seconds", "step_seconds", "exchange_seconds", "decode_seconds",
                              "images_per_hour", "step_sent_bytes", "memory_bytes", "missing_bytes",
                              "weight_bytes_first_rank", "weight_bytes_other_ranks", "replicas", "idle_gpus"}) {
      EXPECT_GE(one.at(field).to_number<double>(), 0) << field;
    }
    EXPECT_TRUE(one.at("fits").as_bool());
    EXPECT_GE(one.at("seconds").as_double(), before);
    before = one.at("seconds").as_double();
  }
}

TEST_F(PlanCommandTest, OneDeviceIsPlannedAtThreeRatesOfMainMemory) {
  const boost::json::object plan = PlanJson({"--gpus", "1", "--link", "pcie", "--memory-limit", "12GiB"});
  const boost::json::array& at = plan.at("one_device").as_array();
  ASSERT_EQ(at.size(), 3u);
  EXPECT_EQ(plan.at("one_device_lacks"), "");
  EXPECT_EQ(at[0].at("link_bytes_per_second").to_number<double>(), 6e9);
  EXPECT_EQ(at[2].at("link_bytes_per_second").to_number<double>(), 25e9);
  EXPECT_EQ(at[0].at("waiting_blocks"), 0);
  EXPECT_EQ(at[0].at("blocks"), 10);
  // Nothing waits, so only the programs are in main memory.
  EXPECT_EQ(at[0].at("main_memory_bytes"), int64_t{1} << 30);
  EXPECT_EQ(at[0].at("reads_encoders"), "no");
  const Result small = Plan({"--gpus", "1", "--link", "pcie", "--main-memory", "1MiB"});
  EXPECT_EQ(small.exit_code, 2) << small.errors;
  EXPECT_THAT(small.errors, HasSubstr("main-memory"));
  EXPECT_GT(at[0].at("step_seconds").to_number<double>(), 0);
  // Nothing is left beyond the driver's part.
  const Result none = Plan({"--gpus", "1", "--link", "pcie", "--memory-limit", "512MiB"});
  EXPECT_EQ(none.exit_code, 0) << none.errors;
  EXPECT_THAT(none.output, AllOf(HasSubstr("one rank on a device of 0.5 GiB: the model needs at least"),
                                 HasSubstr("0.0 KiB are available")));
}

// The bytes must equal those of `tessera layouts`.
TEST_F(PlanCommandTest, SaysWhatTheListOfLayoutsSays) {
  const boost::json::object plan = PlanJson({"--gpus", "2", "--link", "pcie", "--dtype", "bf16"});
  const Result listed = Run({"layouts", "--ranks", "2", "--dtype", "bf16", "--json"});
  ASSERT_EQ(listed.exit_code, 0) << listed.errors;
  const boost::json::object list = Events(listed.output).at(0);
  int compared = 0;
  for (const boost::json::value& layout : list.at("layouts").as_array()) {
    for (const boost::json::value& one : plan.at("plans").as_array()) {
      if (one.at("layout") != layout.at("layout")) continue;
      EXPECT_EQ(one.at("step_sent_bytes"), layout.at("sent_bytes_most"));
      EXPECT_EQ(one.at("weight_bytes_first_rank"), layout.at("weight_bytes_first_rank"));
      ++compared;
    }
  }
  EXPECT_GE(compared, 3);
}

TEST_F(PlanCommandTest, TheTableNamesThePlanAndTheReason) {
  const Result result = Plan({"--gpus", "3", "--link", "ethernet", "--gpu", "rtx-4090"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_THAT(
      result.output,
      AllOf(HasSubstr("3 x RTX-4090 (ethernet)"), HasSubstr("recommended: "),
            ContainsRegex("recommended: [^:]*: predicted [0-9.]+ s an image, [0-9]+ images an hour"),
            HasSubstr("shortest time"), ContainsRegex("predicted:\nplan .*images/hour"), Not(HasSubstr("do not fit"))));
}

TEST_F(PlanCommandTest, AnObjectiveThatNothingKeepsRecommendsNothing) {
  const boost::json::object plan = PlanJson({"--gpus", "2", "--link", "nvlink", "--slo", "1e-9"});
  EXPECT_TRUE(plan.at("recommended").is_null());
  EXPECT_EQ(plan.at("slo_seconds"), 1e-9);
  EXPECT_THAT(std::string(plan.at("reason").as_string()), HasSubstr("Nothing that fits"));
}

TEST_F(PlanCommandTest, AThousandGpusAreReplicas) {
  const boost::json::object plan = PlanJson({"--gpus", "1000", "--link", "nvlink", "--slo", "1000"});
  EXPECT_EQ(plan.at("recommended").at("replicas").as_int64() + plan.at("recommended").at("idle_gpus").as_int64(), 1000);
}

TEST_F(PlanCommandTest, WhatIsWrongIsNamedWithWhatIsValid) {
  for (const auto& [more, message] : std::vector<std::pair<std::vector<std::string>, const char*>>{
           {{"--gpus", "0", "--link", "nvlink"}, "gpus is 0; valid values are 1 to 1024, and the nearest is 1"},
           {{"--gpus", "1025", "--link", "nvlink"}, "the nearest is 1024"},
           {{"--gpus", "many", "--link", "nvlink"}, "many"},
           {{"--gpus", "2", "--link", "nvlnk"}, "the nearest is nvlink"},
           {{"--gpus", "2", "--link", "nvlink", "--gpu", "H10"}, "the nearest is H100"},
           {{"--gpus", "2", "--link", "nvlink", "--gpu", "L40S"}, "valid values are pcie and ethernet"},
           {{"--gpus", "2", "--link", "nvlink", "--slo", "0"}, "slo is 0"},
           {{"--gpus", "2", "--link", "nvlink", "--dtype", "fp8"}, "valid values are bf16 and fp32"},
           {{"--gpus", "2", "--link", "nvlink", "--dtype", "fp64"}, "dtype is fp64"},
           {{"--gpus", "2", "--link", "nvlink", "--size", "100"}, "the nearest are 96 and 104"},
           {{"--gpus", "2", "--link", "nvlink", "--steps", "0"}, "steps is 0"},
           {{"--gpus", "2", "--link", "nvlink", "--memory-limit", "12"}, "write a number and a unit, such as 12GiB"},
           {{"--gpus", "2", "--link", "nvlink", "--memory-limit", "1MiB"}, "it must be at least 512.0 MiB"},
           {{"--gpus", "2", "--link", "nvlink", "--weights", "fp4"}, "valid values are stored, bf16, fp8, int8, q8_0"},
           {{"--gpus", "2"}, "--link"},
           {{"--link", "pcie"}, "--gpus"},
           {{"--device", "tpu"}, "device is 'tpu'"},
           {{"--device", "cuda", "--link", "pcie"}, "--link is not valid with the GPUs of this machine"},
           {{"--device", "cpu", "--gpus", "2"}, "--gpus is for GPUs"},
           {{"--calibrate", "--link", "pcie"}, "--link is for GPUs"},
           {{"--device", "cpu", "--threads", "0"}, "threads is 0; valid values are 1 to 4096"},
           {{"--gpus", "2", "--link", "pcie", "--threads", "2"}, "--threads needs --device cpu"}}) {
    const Result result = Plan(more);
    EXPECT_EQ(result.exit_code, 2) << message;
    EXPECT_THAT(result.errors, HasSubstr(message));
  }
}

TEST_F(PlanCommandTest, AModelThatIsMissingIsSaidToBe) {
  const Result result = Plan({"--gpus", "2", "--link", "nvlink", "--model", "nobody"});
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.errors, HasSubstr("nobody"));
}

}  // namespace
}  // namespace tessera
