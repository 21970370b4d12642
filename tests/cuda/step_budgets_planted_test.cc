// The count of a step's operations (step_budgets_test.cc) notices one more in each block.
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

}  // namespace
}  // namespace tessera
