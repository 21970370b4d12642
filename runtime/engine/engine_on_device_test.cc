// The engine on a device: what becomes of one that fails, of a batch that it has no memory for, and of its memory.
#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "base/status_macros.h"
#include "parallel/segment/mesh_groups.h"
#include "runtime/engine/engine.h"
#include "tests/support/pretend_device.h"
#include "tests/support/thread_ranks.h"

namespace tessera::runtime {
namespace {

constexpr char kEmoji[] = "assets/emoji";

control::JobParameters Apple(int32_t side = 64) {
  return {.prompt = "red apple", .height = side, .width = side, .steps = 3, .guidance_scale = 4, .seed = 1};
}

absl::StatusOr<at::Device> OpenPretendDevice(const std::string&) { return kPretendDevice; }

absl::StatusOr<control::Stepped> Step(Engine& engine, uint64_t job) {
  ASSIGN_OR_RETURN(const control::Stepping stepping, engine.Step({&job, 1}));
  return stepping();
}

// Pixels of the job after all its steps.
absl::StatusOr<std::vector<uint8_t>> Finish(Engine& engine, uint64_t job) {
  for (int step = 0; step < 3; ++step) RETURN_IF_ERROR(Step(engine, job).status());
  ASSIGN_OR_RETURN(const control::Decoding decoding, engine.Decode(job));
  std::vector<uint8_t> pixels;
  RETURN_IF_ERROR(decoding([&](int32_t, absl::Span<const uint8_t> rgb) {
                    pixels.insert(pixels.end(), rgb.begin(), rgb.end());
                    return absl::OkStatus();
                  }).status());
  return pixels;
}

class EngineOnDeviceTest : public testing::Test {
 protected:
  ~EngineOnDeviceTest() override {
    FailPretendDevice(false);
    LimitPretendDevice(std::numeric_limits<int64_t>::max());
  }
};

TEST_F(EngineOnDeviceTest, StepsAreIssuedAndNotWaitedFor) {
  Engine engine({}, OpenPretendDevice);
  EXPECT_FALSE(engine.steps_ahead());
  ASSERT_TRUE(engine.Load({.model = kEmoji}).ok());
  EXPECT_TRUE(engine.steps_ahead());
  ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
  const uint64_t jobs[] = {1};
  const absl::StatusOr<control::Stepping> first = engine.Step(jobs);
  const HostWaits before = PretendDeviceWaits();
  const absl::StatusOr<control::Stepping> second = engine.Step(jobs);
  EXPECT_EQ(PretendDeviceWaits() - before, HostWaits{});
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_EQ((*first)()->completed, 1);
  EXPECT_EQ((*second)()->completed, 2);
  EXPECT_EQ(PretendDeviceWaits() - before, (HostWaits{.waits = 2}));
}

TEST_F(EngineOnDeviceTest, AFailureOfTheDeviceForGoodIsUnavailable) {
  Engine engine({}, OpenPretendDevice);
  ASSERT_TRUE(engine.Load({.model = kEmoji}).ok());
  ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
  ASSERT_TRUE(Step(engine, 1).ok());
  FailPretendDevice(true);
  EXPECT_EQ(Step(engine, 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine.StartJob(2, Apple()).status().code(), absl::StatusCode::kUnavailable);
}

// It fails while the step runs, when the host has long issued it.
TEST_F(EngineOnDeviceTest, AFailureThatOnlyTheStepsEndShowsIsUnavailable) {
  Engine engine({}, OpenPretendDevice);
  ASSERT_TRUE(engine.Load({.model = kEmoji}).ok());
  ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
  const uint64_t jobs[] = {1};
  const absl::StatusOr<control::Stepping> stepping = engine.Step(jobs);
  ASSERT_TRUE(stepping.ok());
  FailPretendDevice(true);
  EXPECT_EQ((*stepping)().status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(EngineOnDeviceTest, ABatchWithoutMemoryFailsAloneOnOneRank) {
  Engine engine({}, OpenPretendDevice);
  ASSERT_TRUE(engine.Load({.model = kEmoji}).ok());
  ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
  const absl::StatusOr<std::vector<uint8_t>> alone = Finish(engine, 1);
  ASSERT_TRUE(alone.ok()) << alone.status();
  ASSERT_TRUE(engine.StartJob(2, Apple()).ok());
  ASSERT_TRUE(engine.StartJob(3, Apple(512)).ok());
  ASSERT_TRUE(Step(engine, 2).ok());
  LimitPretendDevice(PretendDeviceBytes() + (16 << 20));
  EXPECT_EQ(Step(engine, 3).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(engine.EndJob(3).ok());
  LimitPretendDevice(std::numeric_limits<int64_t>::max());
  ASSERT_TRUE(engine.EndJob(2).ok());
  ASSERT_TRUE(engine.StartJob(4, Apple()).ok());
  const absl::StatusOr<std::vector<uint8_t>> after = Finish(engine, 4);
  ASSERT_TRUE(after.ok()) << after.status();
  EXPECT_EQ(*after, *alone);
}

// One of the ranks has no memory for it: all of them say so, and the group makes the next picture.
TEST_F(EngineOnDeviceTest, ABatchWithoutMemoryOnOneRankFailsAloneOnAll) {
  const parallel::Layout layout = *parallel::ParseLayout("ulysses=2");
  ThreadRanksOptions options{.groups = parallel::MeshGroups(*parallel::Mesh::Create(layout.mesh, 2))};
  options.groups.push_back({.name = "test", .ranks = {0, 1}});
  std::vector<std::vector<uint8_t>> pixels(2);
  RunRanks(
      2,
      [&](ThreadRank& thread) {
        const std::unique_ptr<parallel::Communicator> test = thread.Join("test");
        Engine engine({.layout = layout, .rank = thread.rank(), .segment = thread.shared_segment()}, OpenPretendDevice);
        ASSERT_TRUE(engine.Load({.model = kEmoji}).ok());
        ASSERT_TRUE(engine.StartJob(1, Apple(512)).ok());
        test->Barrier();
        if (thread.rank() == 1) LimitPretendDevice(PretendDeviceBytes() + (16 << 20));
        test->Barrier();
        EXPECT_EQ(Step(engine, 1).status().code(), absl::StatusCode::kResourceExhausted) << thread.rank();
        EXPECT_FALSE(thread.segment().IsPoisoned());
        test->Barrier();
        if (thread.rank() == 1) LimitPretendDevice(std::numeric_limits<int64_t>::max());
        test->Barrier();
        EXPECT_TRUE(engine.EndJob(1).ok());
        ASSERT_TRUE(engine.StartJob(2, Apple()).ok());
        const absl::StatusOr<std::vector<uint8_t>> made = Finish(engine, 2);
        ASSERT_TRUE(made.ok()) << made.status();
        pixels[static_cast<size_t>(thread.rank())] = *made;
      },
      options);
  EXPECT_EQ(pixels[0].size(), size_t{64 * 64 * 3});
}

TEST_F(EngineOnDeviceTest, AReloadReleasesWhatTheModelBeforeItHeld) {
  Engine engine({}, OpenPretendDevice);
  ASSERT_TRUE(engine.Load({.model = kEmoji}).ok());
  const int64_t loaded = PretendDeviceBytes();
  ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
  ASSERT_TRUE(Finish(engine, 1).ok());
  ASSERT_TRUE(engine.StartJob(2, Apple()).ok());
  ASSERT_TRUE(Step(engine, 2).ok());
  EXPECT_GT(PretendDeviceBytes(), loaded);
  // There is no room for two of them.
  LimitPretendDevice(loaded + loaded / 2);
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<control::Loaded> again = engine.Load({.model = kEmoji});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(PretendDeviceBytes(), loaded);
  }
}

}  // namespace
}  // namespace tessera::runtime
