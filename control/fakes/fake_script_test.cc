#include "control/fakes/fake_script.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::control {
namespace {

using ::testing::HasSubstr;

FakeScript Read(const std::string& text, int64_t rank = 0) {
  const absl::StatusOr<FakeScript> script = FakeScript::Read(text, rank);
  EXPECT_TRUE(script.ok()) << script.status();
  return script.value_or(FakeScript());
}

TEST(FakeScript, AreReadByName) {
  const FakeScript script = Read("step-time=20  any-model gate=/a=b salt=7");
  EXPECT_EQ(script.Time("step-time"), absl::Milliseconds(20));
  EXPECT_TRUE(script.Has("any-model"));
  EXPECT_FALSE(script.Has("mute"));
  EXPECT_EQ(script.Text("gate"), "/a=b");
  EXPECT_EQ(script.Number("salt"), 7);
  EXPECT_EQ(script.Time("load-time"), absl::ZeroDuration());
}

TEST(FakeScript, OfOneNameTheFirstCounts) { EXPECT_EQ(Read("salt=1 salt=2").Number("salt"), 1); }

TEST(FakeScript, ForARankReachThatRankAlone) {
  EXPECT_TRUE(Read("rank1:mute", 1).Has("mute"));
  EXPECT_FALSE(Read("rank1:mute", 0).Has("mute"));
}

TEST(FakeScript, ForAPromptReachJobsWithThatPromptAlone) {
  const FakeScript script = Read("step2=die step2-of-[fail]=error");
  EXPECT_EQ(script.Fault("step2", "[fail]"), "error");
  EXPECT_EQ(script.Fault("step2", "apple"), "die");
  EXPECT_EQ(script.Fault("step3", "[fail]"), "");
  EXPECT_EQ(Read("start-of-[misfit]=refuse").Fault("start", "[misfit]"), "refuse");
}

TEST(FakeScript, ThatAreUnknownAreRefusedByName) {
  for (const std::string instruction : {"stpe-time=5",
                                        "step-time=",
                                        "step-time=-1",
                                        "step-time=60001",
                                        "step-time=1e3",
                                        "step0=error",
                                        "step=error",
                                        "start",
                                        "start=explode",
                                        "decode=warn",
                                        "step2=refuse",
                                        "permits=",
                                        "mute=1",
                                        "gate=",
                                        "when=",
                                        "rank:mute",
                                        "rankX:mute",
                                        "rank-1:mute",
                                        "error-every=0",
                                        "salt=99999999999",
                                        "=5",
                                        "exit=256",
                                        "memory=0",
                                        "memory-free=",
                                        "identity=A,B",
                                        "device-memory=1,2,3",
                                        "device-memory=1,2,3,x"}) {
    const absl::StatusOr<FakeScript> script = FakeScript::Read("salt=1 " + instruction, 0);
    EXPECT_EQ(script.status().code(), absl::StatusCode::kInvalidArgument) << instruction;
    EXPECT_THAT(std::string(script.status().message()), HasSubstr("'" + instruction + "'"));
  }
}

TEST(FakeScript, OfOtherRanksAreCheckedToo) { EXPECT_FALSE(FakeScript::Read("rank3:stpe=1", 0).ok()); }

}  // namespace
}  // namespace tessera::control
