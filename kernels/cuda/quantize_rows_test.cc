#include "kernels/cuda/quantize_rows.cuh"

#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/quantize_rows_runs.h"

namespace tessera::kernels::cuda {
namespace {

template <typename T>
class QuantizeRowsKernel : public ::testing::Test {};
TYPED_TEST_SUITE(QuantizeRowsKernel, KernelNumbers);

TYPED_TEST(QuantizeRowsKernel, GivesTheCodesAndScalesOfTheDefinition) {
  for (const int64_t columns : {1, 3, 8, 64, 1151, 1152, 5000}) {
    for (const int64_t offset : {0, 1}) {
      QuantizeRowsRun<TypeParam> run(6, columns, offset);
      ASSERT_EQ(run.Launch(kOrders[offset]), cudaSuccess);
      EXPECT_TRUE(run.IsExact()) << columns << " columns, offset " << offset;
    }
  }
  QuantizeRowsRun<TypeParam> run(4, 3000, 0);
  ASSERT_EQ(run.Launch(kOtherOrders[1]), cudaSuccess);
  EXPECT_TRUE(run.IsExact());
}

// Dense rows, and the halves of the rows of a wider product.
TYPED_TEST(QuantizeRowsKernel, HasTheBitsOfTheActivationAndThenTheQuantizing) {
  for (const int64_t columns : {1, 3, 8, 64, 1151, 1152, 5000}) {
    for (const int64_t offset : {0, 1}) {
      QuantizeRowsRun<TypeParam> run(6, columns, offset);
      for (const Activation activation : {Activation::kGeluTanh, Activation::kGelu, Activation::kSilu}) {
        EXPECT_TRUE(run.FoldsExactly(activation, false, kOrders[offset])) << columns << " columns, offset " << offset;
        EXPECT_TRUE(run.FoldsExactly(activation, true, kOrders[offset])) << columns << " columns, offset " << offset;
      }
    }
  }
}

TEST(QuantizeRowsKernelArguments, LaunchesNothingForNoValues) {
  EXPECT_EQ(RunQuantizeRows({.rows = 0, .columns = 32}, EmulatedLauncher(kOrders[0])), cudaSuccess);
}

}  // namespace
}  // namespace tessera::kernels::cuda
