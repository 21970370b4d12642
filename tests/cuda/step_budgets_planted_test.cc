// What the fake CUDA counts shows bugs: one operation more in each block, a graph on one rank alone.
#include <gtest/gtest.h>

#include <string>

#include "tests/cuda/fake_cuda_fixture.h"

namespace tessera {
namespace {

class PlantedStepBudgetTest : public FakeCudaTest {
 protected:
  // Operations of a steady step of a FLUX of four blocks, by a worker with a planted bug.
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

// As ExpectMatchingNcclCalls notices (nccl_calls.h).
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

}  // namespace
}  // namespace tessera
