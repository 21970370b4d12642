// Tests the engine on a device: a device that fails, a batch that exceeds its memory, and its use of memory.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/macros/status_macros.h"
#include "control/model/model_description.h"
#include "control/parameters/job_parameters.h"
#include "control/parameters/load_parameters.h"
#include "control/parameters/loaded.h"
#include "control/protocol/job_replies.h"
#include "control/training/model_training.h"
#include "parallel/segment/mesh_groups.h"
#include "runtime/device/device.h"
#include "runtime/engine/engine.h"
#include "tests/support/late_nccl.h"
#include "tests/support/pretend_device.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/trainer_runs.h"

namespace tessera::runtime {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kEmoji[] = "assets/emoji";

control::JobParameters Apple(int32_t side = 64) {
  return {.prompt = "red apple", .height = side, .width = side, .steps = 3, .guidance_scale = 4, .seed = 1};
}

absl::StatusOr<at::Device> OpenPretendDevice(const std::string&) { return kPretendDevice; }

absl::StatusOr<control::Stepped> Step(Engine& engine, uint64_t job) {
  ASSIGN_OR_RETURN(const control::Stepping stepping, engine.Step({&job, 1}));
  return stepping();
}

// Returns the pixels of the job after all its steps.
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
    SizePretendDevice(0);
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

// The device fails during the step, long after the host has issued it.
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

// One of the ranks has too little memory for the batch: all ranks report it, and the group generates the next picture.
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

// Returns a picture of five steps on four ranks, which uses graphs from the third step on.
std::vector<uint8_t> PictureOfFourRanks() {
  const parallel::Layout layout = *parallel::ParseLayout("ring=2,ulysses=2");
  const ThreadRanksOptions options{.groups = parallel::MeshGroups(*parallel::Mesh::Create(layout.mesh, 4))};
  std::vector<uint8_t> pixels;
  RunRanks(
      4,
      [&](ThreadRank& thread) {
        Engine engine({.layout = layout, .rank = thread.rank(), .segment = thread.shared_segment()}, OpenPretendDevice);
        ASSERT_TRUE(engine.Load({.model = kEmoji}).ok());
        control::JobParameters apple = Apple();
        apple.steps = 5;
        ASSERT_TRUE(engine.StartJob(1, apple).ok());
        for (int step = 0; step < 2; ++step) ASSERT_TRUE(Step(engine, 1).ok());
        const absl::StatusOr<std::vector<uint8_t>> made = Finish(engine, 1);
        ASSERT_TRUE(made.ok()) << made.status();
        if (thread.rank() == 0) pixels = *made;
      },
      options);
  return pixels;
}

TEST_F(EngineOnDeviceTest, RanksWithACardEachMakeThePictureThroughNcclAndInGraphs) {
  const std::vector<uint8_t> through_the_host = PictureOfFourRanks();
  ASSERT_EQ(through_the_host.size(), size_t{64 * 64 * 3});
  LateNccl nccl;
  const std::vector<uint8_t> through_nccl = PictureOfFourRanks();
  EXPECT_THAT(nccl.problems(), testing::IsEmpty());
  EXPECT_GT(nccl.calls(), 0);
  ASSERT_EQ(through_nccl.size(), through_the_host.size());
  // Sums have a different order.
  for (size_t i = 0; i < through_nccl.size(); ++i) EXPECT_NEAR(through_nccl[i], through_the_host[i], 1) << i;
}

TEST_F(EngineOnDeviceTest, RanksThatDoNotComeTogetherFailToLoad) {
  const parallel::Layout layout = *parallel::ParseLayout("ulysses=2");
  const ThreadRanksOptions options{.groups = parallel::MeshGroups(*parallel::Mesh::Create(layout.mesh, 2))};
  LateNccl nccl({.no_id = true});
  RunRanks(
      2,
      [&](ThreadRank& thread) {
        Engine engine({.layout = layout, .rank = thread.rank(), .segment = thread.shared_segment()}, OpenPretendDevice);
        const absl::StatusOr<control::Loaded> loaded = engine.Load({.model = kEmoji});
        EXPECT_EQ(loaded.status().code(), absl::StatusCode::kAborted) << loaded.status();
        EXPECT_TRUE(thread.segment().IsPoisoned());
      },
      options);
}

TEST_F(EngineOnDeviceTest, WeightsThatWaitInMainMemoryMakeTheSamePictureInLessOfTheDevices) {
  constexpr char kFlux[] = "tests/golden/pipelines/flux_dev";
  Engine engine({}, OpenPretendDevice);
  ASSERT_TRUE(engine.Load({.model = kFlux, .placement = {.offload = control::Offload::kNever}}).ok());
  const int64_t on_device = PretendDeviceBytes();
  // Returns the waits of a first step, which computes the modulations of all steps.
  const auto first_step_waits = [&] {
    const uint64_t jobs[] = {1};
    EXPECT_TRUE(engine.StartJob(1, Apple()).ok());
    const HostWaits before = PretendDeviceWaits();
    EXPECT_TRUE(engine.Step(jobs).ok());
    const HostWaits waits = PretendDeviceWaits() - before;
    EXPECT_TRUE(engine.EndJob(1).ok());
    return waits;
  };
  const HostWaits waits = first_step_waits();
  ASSERT_TRUE(engine.StartJob(2, Apple()).ok());
  const absl::StatusOr<std::vector<uint8_t>> expected = Finish(engine, 2);
  ASSERT_TRUE(expected.ok()) << expected.status();
  // In fp32: two blocks with two modulations of six widths, two with one of three, and the head's modulation of two.
  // The matrices of the text encoders are larger.
  const int64_t width = 4 * 16, modulations = (2 * 12 + 2 * 3 + 2) * width * width * 4;
  for (const auto text_encoders : {control::ComponentPlacement::kRank0, control::ComponentPlacement::kUnloaded,
                                   control::ComponentPlacement::kStreamed}) {
    ASSERT_TRUE(
        engine
            .Load({.model = kFlux, .placement = {.text_encoders = text_encoders, .offload = control::Offload::kAlways}})
            .ok());
    EXPECT_LT(PretendDeviceBytes(), on_device - modulations);
    EXPECT_EQ(first_step_waits(), waits);
    ASSERT_TRUE(engine.StartJob(2, Apple()).ok());
    const absl::StatusOr<std::vector<uint8_t>> made = Finish(engine, 2);
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(*made, *expected);
  }
}

TEST_F(EngineOnDeviceTest, AsMuchWaitsAsTheMemoryOfTheDeviceRequires) {
  constexpr char kFlux[] = "tests/golden/pipelines/flux_dev";
  Engine engine({}, OpenPretendDevice);
  const auto load = [&](control::Offload offload) {
    return engine.Load({.model = kFlux, .placement = {.offload = offload}, .prompt_cache_bytes = 0}).status();
  };
  const auto make = [&] {
    EXPECT_TRUE(engine.StartJob(1, Apple()).ok());
    return Finish(engine, 1);
  };
  ASSERT_EQ(load(control::Offload::kNever), absl::OkStatus());
  const int64_t all = PretendDeviceBytes();
  const absl::StatusOr<std::vector<uint8_t>> expected = make();
  ASSERT_TRUE(expected.ok()) << expected.status();
  // Returns the smallest device on which the model loads.
  const auto least_device = [&](control::Offload offload) {
    int64_t refused = 0, enough = int64_t{1} << 30;
    while (enough - refused > 1) {
      const int64_t size = (refused + enough) / 2;
      SizePretendDevice(size);
      (load(offload).ok() ? enough : refused) = size;
    }
    return enough;
  };
  const int64_t never = least_device(control::Offload::kNever), least = least_device(control::Offload::kAuto);
  EXPECT_LT(least, never);
  int64_t before = all;
  for (const int64_t size : {2 * never, never - 1, (never + least) / 2, least}) {
    SizePretendDevice(size);
    ASSERT_EQ(load(control::Offload::kAuto), absl::OkStatus()) << size;
    EXPECT_LE(PretendDeviceBytes(), before);
    before = PretendDeviceBytes();
    if (size == 2 * never) {
      EXPECT_EQ(before, all);
    } else {
      EXPECT_LT(before, all);
    }
    const absl::StatusOr<std::vector<uint8_t>> made = make();
    ASSERT_TRUE(made.ok()) << made.status();
    EXPECT_EQ(*made, *expected) << size;
  }
  // Weights wait in pageable memory where no more can be pinned.
  SizePretendDevice(least);
  const auto log_of_load = [&] {
    testing::internal::CaptureStderr();
    EXPECT_EQ(load(control::Offload::kAuto), absl::OkStatus());
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(log_of_load(), AllOf(HasSubstr("wait in main memory"), Not(HasSubstr("pageable"))));
  LimitPretendPinnedMemory(int64_t{1} << 18);
  EXPECT_THAT(log_of_load(), ContainsRegex("memory: [0-9.]+ [KM]iB of the [0-9.]+ [KM]iB in which weights wait are "
                                           "pageable, because .*, and a step takes [0-9.e+-]+ s\n"));
  const absl::StatusOr<std::vector<uint8_t>> pageable = make();
  LimitPretendPinnedMemory(std::numeric_limits<int64_t>::max());
  ASSERT_TRUE(pageable.ok()) << pageable.status();
  EXPECT_EQ(*pageable, *expected);
  // A limit counts like a smaller device, with what is for the driver.
  SizePretendDevice(int64_t{8} << 30);
  const auto limited = [&](int64_t mebibytes) {
    const std::string limit = absl::StrCat(512 + mebibytes, "MiB");
    return engine.Load({.model = kFlux, .placement = {.memory_limit = limit}, .prompt_cache_bytes = 0}).status();
  };
  const int64_t mebibytes = least >> 20;
  EXPECT_EQ(limited(mebibytes).code(), absl::StatusCode::kResourceExhausted);
  ASSERT_EQ(limited(mebibytes + 1), absl::OkStatus());
  LimitPretendDevice(std::numeric_limits<int64_t>::max());
  SizePretendDevice(0);
}

TEST_F(EngineOnDeviceTest, ALimitOfMemoryNeedsADeviceWithMemoryOfItsOwn) {
  Engine engine({}, [](const std::string&) { return at::Device(at::kCPU); });
  const absl::Status refused = engine.Load({.model = kEmoji, .placement = {.memory_limit = "8GiB"}}).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(refused.message()).find("memory limit is for a device with memory of its own"),
            std::string::npos);
  EXPECT_TRUE(engine.Load({.model = kEmoji}).ok());
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
  // There is not enough memory for two of them.
  LimitPretendDevice(loaded + loaded / 2);
  for (int i = 0; i < 2; ++i) {
    const absl::StatusOr<control::Loaded> again = engine.Load({.model = kEmoji});
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(PretendDeviceBytes(), loaded);
  }
}

// A run of an adapter and a built-in model, from its start to a picture and a file.
class TrainingOnDeviceTest : public EngineOnDeviceTest {
 protected:
  struct Run {
    control::TrainingStarted started;
    std::vector<double> numbers;  // losses and norms of the steps, and the losses of validation
    std::vector<uint8_t> pixels;
    std::string adapter;
    int64_t loaded_bytes = 0;  // of the device, for the model
    HostWaits of_last_step;
  };

  TrainingOnDeviceTest() { runs_.SetModel(kEmoji); }

  control::TrainConfig Config(const std::string& output, int64_t blocks_to_swap, bool quantize) const {
    control::TrainConfig config = runs_.Config(output);
    config.network.type = control::NetworkType::kLora;
    config.network.linear = 2;
    config.train.dtype = control::TrainDtype::kFp32;
    config.train.blocks_to_swap = blocks_to_swap;
    config.train.quantize = quantize;
    return config;
  }

  static control::LoadParameters LoadOf(const control::TrainConfig& config) {
    return {.model = config.model,
            .training = true,
            .quantize = config.train.quantize,
            .blocks_to_swap = static_cast<int32_t>(config.train.blocks_to_swap)};
  }

  absl::StatusOr<Run> Train(const control::TrainConfig& config) const {
    Run run;
    const int64_t before = PretendDeviceBytes();
    Engine engine({}, OpenPretendDevice);
    RETURN_IF_ERROR(engine.Load(LoadOf(config)).status());
    run.loaded_bytes = PretendDeviceBytes() - before;
    ASSIGN_OR_RETURN(run.started, engine.StartTraining({.config = control::TrainConfigJson(config)}));
    RETURN_IF_ERROR(engine.PrepareSamples(run.started.samples).status());
    for (int step = 0; step < 2; ++step) {
      const HostWaits at_start = PretendDeviceWaits();
      ASSIGN_OR_RETURN(const control::Trained trained, engine.Train());
      run.of_last_step = PretendDeviceWaits() - at_start;
      run.numbers.insert(run.numbers.end(), {trained.loss, trained.gradient_norm});
    }
    ASSIGN_OR_RETURN(const control::TrainingEvaluated evaluated, engine.EvaluateTraining());
    run.numbers.insert(run.numbers.end(), evaluated.losses.begin(), evaluated.losses.end());
    RETURN_IF_ERROR(engine.StartJob(1, Apple()).status());
    ASSIGN_OR_RETURN(run.pixels, Finish(engine, 1));
    ASSIGN_OR_RETURN(const control::TrainingSaved saved, engine.SaveTraining(/*exports=*/true));
    std::ifstream file(saved.exported, std::ios::binary);
    run.adapter.assign(std::istreambuf_iterator<char>(file), {});
    return run;
  }

  TrainerRuns runs_{"pixart_sigma"};
};

TEST_F(TrainingOnDeviceTest, SwappedBlocksInEightBitsChangeNoStepNoPictureAndNoFile) {
  const absl::StatusOr<Run> stays = Train(Config("stays", 0, true)), swaps = Train(Config("swaps", 7, true));
  ASSERT_TRUE(stays.ok()) << stays.status();
  ASSERT_TRUE(swaps.ok()) << swaps.status();
  EXPECT_LT(swaps->loaded_bytes, stays->loaded_bytes);
  EXPECT_EQ(swaps->numbers, stays->numbers);
  EXPECT_EQ(swaps->pixels, stays->pixels);
  EXPECT_FALSE(stays->adapter.empty());
  EXPECT_EQ(swaps->adapter, stays->adapter);
  EXPECT_EQ(swaps->of_last_step, stays->of_last_step);
  EXPECT_EQ(swaps->started.warnings, stays->started.warnings);
}

TEST_F(TrainingOnDeviceTest, TheEncodersLeaveTheDeviceOnceEverythingIsEncoded) {
  SizePretendDevice(int64_t{1} << 40);
  const control::TrainConfig config = Config("released", 0, false);
  Engine engine({}, OpenPretendDevice);
  ASSERT_TRUE(engine.Load(LoadOf(config)).ok());
  const absl::StatusOr<control::TrainingStarted> started =
      engine.StartTraining({.config = control::TrainConfigJson(config)});
  ASSERT_TRUE(started.ok()) << started.status();
  const int64_t before = PretendDeviceBytes();
  ASSERT_TRUE(engine.PrepareSamples(1).ok());
  EXPECT_GT(PretendDeviceBytes(), before) << "the encoders stay for the next sample";
  ASSERT_TRUE(engine.PrepareSamples(started->samples).ok());
  EXPECT_EQ(PretendDeviceBytes(), before);
  EXPECT_TRUE(engine.Train().ok());
  // A sample image reads them again.
  ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
  EXPECT_TRUE(Finish(engine, 1).ok());
}

// Blocks that wait save at least what was predicted, except for the alignment of storages in their buffers.
TEST_F(TrainingOnDeviceTest, TheDeviceHoldsNoMoreThanWasPredicted) {
  constexpr int64_t kAlignment = int64_t{64} << 10;
  const absl::StatusOr<control::ModelDescription> model = Engine(WorkerRank{}).Describe(kEmoji);
  ASSERT_TRUE(model.ok()) << model.status();
  const auto loaded = [&](int64_t blocks_to_swap) {
    const int64_t before = PretendDeviceBytes();
    Engine engine({}, OpenPretendDevice);
    EXPECT_TRUE(engine.Load(LoadOf(Config("run", blocks_to_swap, false))).ok());
    return PretendDeviceBytes() - before;
  };
  const auto predicted = [&](int64_t blocks_to_swap) {
    return static_cast<int64_t>(
        control::PredictMemory(Config("run", blocks_to_swap, false), *model, {{64, 64}}).weights);
  };
  const int64_t all = loaded(0);
  for (const int64_t swapped : {3, 5, 8}) {
    EXPECT_LE(loaded(swapped) - all, predicted(swapped) - predicted(0) + kAlignment) << swapped;
    EXPECT_LT(predicted(swapped) - predicted(0) + kAlignment, 0) << swapped;
  }
}

TEST_F(TrainingOnDeviceTest, NoMoreBlocksAreSwappedThanTheModelHas) {
  Engine engine({}, OpenPretendDevice);
  const absl::StatusOr<control::Loaded> loaded = engine.Load(LoadOf(Config("run", 9, false)));
  EXPECT_EQ(loaded.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(loaded.status().message()), HasSubstr("train.blocks_to_swap is 9; valid values are 0 to 8"));
}

TEST_F(TrainingOnDeviceTest, OnACpuTheRunSaysThatNoBlockIsSwapped) {
  const control::TrainConfig config = Config("run", 3, false);
  Engine engine(WorkerRank{});
  ASSERT_TRUE(engine.Load(LoadOf(config)).ok());
  const absl::StatusOr<control::TrainingStarted> started =
      engine.StartTraining({.config = control::TrainConfigJson(config)});
  ASSERT_TRUE(started.ok()) << started.status();
  EXPECT_THAT(started->warnings, Contains(HasSubstr("train.blocks_to_swap is 3 and has no effect on a CPU")));
}

// Loads the model on the smallest device, to the MiB, that has enough memory for the plan.
absl::StatusOr<control::Loaded> LoadOnTheLeastDevice(Engine& engine, const control::LoadParameters& load) {
  absl::StatusOr<control::Loaded> loaded = absl::ResourceExhaustedError("not tried");
  ReleaseDeviceMemory(kPretendDevice);
  for (int64_t bytes = PretendDeviceBytes(); absl::IsResourceExhausted(loaded.status()) && bytes < int64_t{1} << 30;) {
    SizePretendDevice(bytes += int64_t{1} << 20);
    loaded = engine.Load(load);
  }
  return loaded;
}

constexpr uint64_t kMiB = uint64_t{1} << 20;

TEST_F(EngineOnDeviceTest, APlanCountsTheCacheOfPrompts) {
  Engine engine({}, OpenPretendDevice);
  control::LoadParameters load = {.model = kEmoji, .prompt_cache_bytes = 32 * kMiB};
  const absl::StatusOr<control::Loaded> loaded = LoadOnTheLeastDevice(engine, load);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  ASSERT_TRUE(loaded->device_memory.has_value() && loaded->memory_budget.has_value());
  EXPECT_EQ(loaded->device_memory->used, static_cast<uint64_t>(PretendDeviceBytes()));
  EXPECT_EQ(loaded->memory_budget->free + 32 * kMiB, loaded->device_memory->free);
  load.prompt_cache_bytes += 2 * kMiB;
  EXPECT_EQ(engine.Load(load).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(EngineOnDeviceTest, APlanCountsNothingThatTheAllocatorKeepsOfTheModelBefore) {
  Engine engine({}, OpenPretendDevice);
  const control::LoadParameters load = {.model = kEmoji};
  ASSERT_TRUE(LoadOnTheLeastDevice(engine, load).ok());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
    ASSERT_TRUE(Finish(engine, 1).ok());
    EXPECT_GT(ReadDeviceMemory(kPretendDevice)->cached, 0);
    const absl::Status again = engine.Load(load).status();
    ASSERT_TRUE(again.ok()) << again;
  }
}

// Covers a verification that retries after one rank had too little memory.
TEST_F(EngineOnDeviceTest, APlanCountsNothingThatTheAllocatorKeepsOfALoadThatFailed) {
  Engine engine({}, OpenPretendDevice);
  const control::LoadParameters load = {.model = kEmoji, .placement = {.offload = control::Offload::kNever}};
  ASSERT_TRUE(LoadOnTheLeastDevice(engine, load).ok());
  // The plan has enough memory, but the device does not.
  LimitPretendDevice(PretendDeviceBytes() / 2);
  EXPECT_THAT(std::string(engine.Load(load).status().message()), testing::HasSubstr("out of memory on the device"));
  EXPECT_GT(ReadDeviceMemory(kPretendDevice)->cached, 0);
  LimitPretendDevice(std::numeric_limits<int64_t>::max());
  const absl::Status again = engine.Load(load).status();
  EXPECT_TRUE(again.ok()) << again;
}

TEST_F(EngineOnDeviceTest, EveryStepReportsTheMemoryOfItsDevice) {
  Engine engine({}, OpenPretendDevice);
  ASSERT_TRUE(engine.Load({.model = kEmoji}).ok());
  ASSERT_TRUE(engine.StartJob(1, Apple()).ok());
  EXPECT_EQ(Step(engine, 1)->device_memory, std::nullopt);
  SizePretendDevice(int64_t{1} << 40);
  const absl::StatusOr<control::Stepped> stepped = Step(engine, 1);
  ASSERT_TRUE(stepped.ok() && stepped->device_memory.has_value());
  EXPECT_EQ(stepped->device_memory->used, static_cast<uint64_t>(PretendDeviceBytes()));
}

}  // namespace
}  // namespace tessera::runtime
