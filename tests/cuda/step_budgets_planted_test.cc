// Checks that the fake CUDA detects planted bugs: an extra operation in each block, a graph on one rank only, a capture
// of code that is not loaded or of a stream that is not joined, a call on another card.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>
#include <string>

#include "tests/cuda/fake_cuda_fixture.h"
#include "tests/cuda/full_size_models.h"

namespace tessera {
namespace {

class PlantedStepBudgetTest : public FakeCudaTest {
 protected:
  // Returns the operations of a steady step of a FLUX of four blocks, by a worker with a planted bug.
  int Operations(const std::string& bug) const {
    const Finished run = Run({"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--device=cuda",
                              "--dtype=bf16", "--steps=5", "--seed=1", "--output=" + (folder_ / "a.png")},
                             {{"TESSERA_WORKER", PLANTED_WORKER}, {"TESSERA_PLANTED_BUG", bug}});
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    if (run.logs.size() != 1 || run.logs[0].Steps().size() != 5) return 0;
    return run.logs[0].Steps()[3].count;
  }
};

TEST_F(PlantedStepBudgetTest, ACloneInEveryBlockIsFourOperationsMore) {
  const int operations = Operations("none");
  EXPECT_GT(operations, 0);
  EXPECT_EQ(Operations("flux_clone_per_block"), operations + 4);
}

// The activations of the step before the capture would be there a second time.
TEST_F(PlantedStepBudgetTest, AGraphBesideUnusedMemoryTakesMore) {
  WriteFullSizePixartSigma(folder_);
  const auto peak = [&](const std::string& bug) {
    const Finished run =
        Run({"generate", "a cat", "--model=" + (folder_ / "pixart_sigma"), "--device=cuda", "--dtype=bf16", "--steps=4",
             "--seed=1", "--size=1024", "--overwrite", "--output=" + (folder_ / "a.png")},
            {{"TESSERA_WORKER", PLANTED_WORKER}, {"TESSERA_PLANTED_BUG", bug}});
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    return run.logs.size() == 1 ? run.logs[0].PeakBytes() : 0;
  };
  EXPECT_GT(peak("graph_beside_unused_memory"), peak("none") + (int64_t{100} << 20));
}

// ExpectMatchingNcclCalls (nccl_calls.h) detects this difference.
TEST_F(PlantedStepBudgetTest, ARankThatKeepsItsGraphAloneLaunchesMoreThanTheOther) {
  const auto launches_differ = [&](const std::string& bug) {
    const Finished run = Run(
        {"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--device=cuda", "--dtype=bf16", "--steps=5",
         "--seed=1", "--layout=ulysses=2", "--certify=off", "--overwrite", "--output=" + (folder_ / "a.png")},
        {{"TESSERA_WORKER", PLANTED_WORKER},
         {"TESSERA_PLANTED_BUG", bug},
         {"FAKE_CUDA_DEVICES", "2"},
         {"FAKE_CUDA_FAIL", "1/cudaStreamEndCapture:1"}});
    EXPECT_EQ(run.exit_code, 0) << run.errors;
    return run.logs.size() == 2 && run.logs[0].Count("graph") != run.logs[1].Count("graph");
  };
  EXPECT_FALSE(launches_differ("none"));
  EXPECT_TRUE(launches_differ("ranks_capture_alone"));
}

class PlantedRefusalTest : public FakeCudaTest {
 protected:
  // Runs a worker with a planted bug on two fake cards.
  Finished Generate(const std::string& bug, const std::string& layout) const {
    return Run(
        {"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--device=cuda", "--dtype=bf16", "--steps=4",
         "--seed=1", "--layout=" + layout, "--certify=off", "--overwrite", "--output=" + (folder_ / "a.png")},
        {{"TESSERA_WORKER", PLANTED_WORKER}, {"TESSERA_PLANTED_BUG", bug}, {"FAKE_CUDA_DEVICES", "2"}});
  }

  static std::set<std::string> Faults(const Finished& run) {
    std::set<std::string> faults;
    for (const FakeCudaLog& log : run.logs) {
      for (const std::string& fault : log.Faults()) faults.insert(fault);
    }
    return faults;
  }
};

TEST_F(PlantedRefusalTest, AnOperatorThatRunsInACaptureFirstLoadsItsCodeThere) {
  const Finished sound = Generate("none", "serial"), planted = Generate("graph_of_an_operator_more", "serial");
  ASSERT_EQ(sound.logs.size(), 1u);
  EXPECT_THAT(Faults(sound), testing::IsEmpty());
  EXPECT_GT(sound.logs[0].Count("graph"), 0);
  ASSERT_EQ(planted.logs.size(), 1u);
  EXPECT_THAT(Faults(planted), testing::Contains(testing::StartsWith("load_in_capture ")));
  EXPECT_EQ(planted.logs[0].Count("graph"), 0);
}

TEST_F(PlantedRefusalTest, AStreamThatIsNotJoinedSpoilsTheCapture) {
  const Finished sound = Generate("none", "ring=2"), planted = Generate("finish_waits_for_nothing", "ring=2");
  ASSERT_EQ(sound.logs.size(), 2u);
  EXPECT_THAT(Faults(sound), testing::IsEmpty());
  EXPECT_GT(sound.logs[0].Count("graph"), 0);
  EXPECT_THAT(Faults(planted), testing::Contains("error cudaStreamEndCapture 904"));
}

TEST_F(PlantedRefusalTest, AFailedCaptureThatLeavesItsPoolsKeepsTheirMemory) {
  for (const bool planted : {false, true}) {
    ChildOptions options;
    options.arguments = {CAPTURES_TEST, "--gtest_filter=CudaCaptures.LeaveAWorkerAsItWasWhereTheyFail"};
    options.folder = std::filesystem::current_path();
    options.environment = Environment({{"FAKE_CUDA_FAIL", "cudaStreamEndCapture:1"},
                                       {"TESSERA_PLANTED_BUG", planted ? "failed_capture_keeps_its_pools" : "none"}});
    ChildProcess child(options);
    EXPECT_EQ(child.Wait() == 0, !planted) << child.output();
    EXPECT_EQ(child.output().find("the memory of the failed capture is kept") != std::string::npos, planted);
  }
}

TEST_F(PlantedRefusalTest, AMarkIsAskedAboutOnItsOwnCard) {
  const Finished sound = Generate("none", "ulysses=2");
  const Finished planted = Generate("mark_asked_about_on_any_device", "ulysses=2");
  EXPECT_THAT(Faults(sound), testing::IsEmpty());
  EXPECT_THAT(Faults(planted), testing::Contains(testing::MatchesRegex("error cudaEvent[A-Za-z]+ 400")));
  int contexts = 0;
  for (const FakeCudaLog& log : planted.logs) contexts += log.Count("context");
  EXPECT_GT(contexts, 2);
}

// The card has enough memory for each rank alone, but not for both.
TEST_F(PlantedRefusalTest, RanksThatShareACardAreRefusedWhatTheyCannotLoadTogether) {
  WriteFullSizePixartSigma(folder_);
  const auto load = [&](const std::string& bug, const std::string& mib) {
    return Run({"generate", "a cat", "--model=" + (folder_ / "pixart_sigma"), "--device=cuda:0", "--dtype=bf16",
                "--steps=1", "--seed=1", "--size=512", "--layout=ulysses=2", "--certify=off", "--offload=never",
                "--overwrite", "--output=" + (folder_ / "a.png")},
               {{"TESSERA_WORKER", PLANTED_WORKER}, {"TESSERA_PLANTED_BUG", bug}, {"FAKE_CUDA_MEMORY_MIB", mib}});
  };
  constexpr char kEnough[] = "8192", kForOne[] = "3400";
  EXPECT_EQ(load("none", kEnough).exit_code, 0);
  const Finished refused = load("none", kForOne), planted = load("ranks_on_a_card_plan_alone", kForOne);
  EXPECT_THAT(refused.errors, testing::HasSubstr("does not fit in memory"));
  EXPECT_THAT(refused.errors, testing::HasSubstr("2 ranks share the device's memory"));
  EXPECT_THAT(planted.errors, testing::HasSubstr("out of memory on the device"));
}

// The card could hold the model if its process had no context.
TEST_F(PlantedRefusalTest, APlanCountsWhatAContextTakes) {
  const auto load = [&](const std::string& bug) {
    return Run({"generate", "a cat", "--model=tests/golden/pipelines/flux_dev", "--device=cuda", "--dtype=bf16",
                "--steps=1", "--seed=1", "--overwrite", "--output=" + (folder_ / "a.png")},
               {{"TESSERA_WORKER", PLANTED_WORKER},
                {"TESSERA_PLANTED_BUG", bug},
                {"FAKE_CUDA_MEMORY_MIB", "1100"},
                {"FAKE_CUDA_CONTEXT_MIB", "1000"}});
  };
  const Finished refused = load("none");
  EXPECT_NE(refused.exit_code, 0);
  EXPECT_THAT(refused.errors, testing::HasSubstr("does not fit in memory"));
  EXPECT_THAT(load("plan_ignores_contexts").errors, testing::Not(testing::HasSubstr("does not fit in memory")));
}

}  // namespace
}  // namespace tessera
