#include "kernels/cuda/widen.cuh"

#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/widen_runs.h"

namespace tessera::kernels::cuda {
namespace {

template <typename T>
class WidenKernel : public ::testing::Test {};
TYPED_TEST_SUITE(WidenKernel, KernelNumbers);

TYPED_TEST(WidenKernel, GivesTheValuesOfTheDefinitionOfEveryForm) {
  for (const QuantType type : kQuantTypes) {
    const bool is_nibble = type == QuantType::kNibble;
    const int64_t block = is_nibble ? 8 : BlockOf(type).values;
    for (const int64_t blocks : {1, 2, 3, 7, 24, 129}) {
      for (const int64_t offset : {0, 1}) {
        WidenRun<TypeParam> run(type, 3, blocks * block, is_nibble ? block : 0, offset);
        ASSERT_EQ(run.Launch(kOrders[offset]), cudaSuccess);
        EXPECT_TRUE(run.IsExact()) << QuantTypeName(type) << ", " << blocks << " blocks, offset " << offset;
      }
    }
  }
}

TEST(WidenKernelArguments, LaunchesNothingForNoValues) {
  EXPECT_EQ(RunWiden({.rows = 0, .columns = 32}, EmulatedLauncher(kOrders[0])), cudaSuccess);
}

}  // namespace
}  // namespace tessera::kernels::cuda
