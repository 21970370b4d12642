#include <gtest/gtest.h>

#include "tests/support/cuda_emulation/group_moments_runs.h"
#include "tests/support/cuda_emulation/heads_runs.h"
#include "tests/support/cuda_emulation/quantize_rows_runs.h"
#include "tests/support/cuda_emulation/residual_norm_runs.h"
#include "tests/support/cuda_emulation/widen_runs.h"
#include "tests/support/planted_bug.h"

namespace tessera::kernels::cuda {
namespace {

constexpr int64_t kWhole = 1152, kTail = 1151;  // channels: a multiple of every chunk, and not

// Returns whether the kernel differs from its definition, or its results in two orders of execution from each other.
template <typename T>
bool NormIsWrong(int64_t channels) {
  const NormParts parts{.y = true, .gate = true, .norm = NormKind::kLayer, .then = Scaling::kModulate};
  const typename Rows<T>::Layout layout{.images = 2, .tokens = 3, .channels = channels, .gap = 8};
  ResidualNormRun<T> run(layout, parts, 1), other(layout, parts, 1);
  EXPECT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_EQ(other.Launch(kOrders[1]), cudaSuccess);
  return run.Worst() > 1 || !run.SameBits(other);
}

TEST(PlantedKernelBugs, LeaveTheNormRightWhereThereAreNone) {
  const PlantedBug none("");
  for (const int64_t channels : {kWhole, kTail}) {
    EXPECT_FALSE(NormIsWrong<__nv_bfloat16>(channels));
    EXPECT_FALSE(NormIsWrong<float>(channels));
    EXPECT_FALSE(NormIsWrong<double>(channels));
  }
}

TEST(PlantedKernelBugs, ShowInTheNorm) {
  for (const char* bug : {"kernel_missing_barrier", "kernel_wrong_stride"}) {
    const PlantedBug planted(bug);
    for (const int64_t channels : {kWhole, kTail}) {
      EXPECT_TRUE(NormIsWrong<__nv_bfloat16>(channels)) << bug << ", " << channels;
      EXPECT_TRUE(NormIsWrong<float>(channels)) << bug << ", " << channels;
      EXPECT_TRUE(NormIsWrong<double>(channels)) << bug << ", " << channels;
    }
  }
}

TEST(PlantedKernelBugs, ShowInTheTailsOfTheNorm) {
  const PlantedBug planted("kernel_tail_off_by_one");
  EXPECT_TRUE(NormIsWrong<__nv_bfloat16>(kTail));
  EXPECT_TRUE(NormIsWrong<float>(kTail));
  EXPECT_TRUE(NormIsWrong<double>(kTail));
}

TEST(PlantedKernelBugs, ShowInTheNormOfNarrowNumbersWhenItsSumsAreNotWidened) {
  const PlantedBug planted("kernel_sum_not_widened");
  EXPECT_TRUE(NormIsWrong<__nv_bfloat16>(kWhole));
}

template <typename T>
bool HeadsAreWrong(int head_dim) {
  const HeadsCase heads{
      .images = 2, .tokens = 3, .ranks = 2, .heads = 2, .head_dim = head_dim, .place = HeadsPlace::kForRanks};
  HeadsRun<T> run(heads, 1), other(heads, 1);
  EXPECT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_EQ(other.Launch(kOrders[1]), cudaSuccess);
  return run.Worst() > 1 || !run.SameBits(other);
}

TEST(PlantedKernelBugs, ShowInTheHeads) {
  const PlantedBug none("");
  EXPECT_FALSE(HeadsAreWrong<__nv_bfloat16>(64) || HeadsAreWrong<float>(64) || HeadsAreWrong<double>(64));
  EXPECT_FALSE(HeadsAreWrong<__nv_bfloat16>(62) || HeadsAreWrong<float>(62) || HeadsAreWrong<double>(62));
  const PlantedBug stride("kernel_wrong_stride");
  EXPECT_TRUE(HeadsAreWrong<__nv_bfloat16>(64) && HeadsAreWrong<float>(64) && HeadsAreWrong<double>(64));
  const PlantedBug tail("kernel_tail_off_by_one");
  EXPECT_TRUE(HeadsAreWrong<__nv_bfloat16>(62) && HeadsAreWrong<float>(62));
}

template <typename T>
bool MomentsAreWrong() {
  GroupMomentsRun<T> run({.images = 2, .groups = 2, .channels = 2, .plane = 1000}), other = run;
  EXPECT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  EXPECT_EQ(other.Launch(kOrders[1]), cudaSuccess);
  return run.Worst() > 1 || !run.SameBits(other);
}

TEST(PlantedKernelBugs, ShowInTheMomentsOfGroups) {
  const PlantedBug none("");
  EXPECT_FALSE(MomentsAreWrong<__nv_bfloat16>() || MomentsAreWrong<float>() || MomentsAreWrong<double>());
  const PlantedBug barrier("kernel_missing_barrier");
  EXPECT_TRUE(MomentsAreWrong<__nv_bfloat16>() && MomentsAreWrong<float>() && MomentsAreWrong<double>());
}

template <typename T>
bool WideningIsWrong(QuantType type) {
  WidenRun<T> run(type, 3, type == QuantType::kNibble ? 64 : 256, 64, 0);
  EXPECT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  return !run.IsExact();
}

TEST(PlantedKernelBugs, ShowInWideningOfTheFormsThatTheyConcern) {
  const PlantedBug none("");
  for (const QuantType type : kQuantTypes) EXPECT_FALSE(WideningIsWrong<float>(type)) << QuantTypeName(type);
  {
    const PlantedBug scale("kernel_neighbours_scale");
    for (const QuantType type :
         {QuantType::kInt8, QuantType::kF8E4M3, QuantType::kF8E5M2, QuantType::kNibble, QuantType::kQ2_K,
          QuantType::kQ3_K, QuantType::kQ4_K, QuantType::kQ5_K, QuantType::kQ6_K, QuantType::kIQ4_XS}) {
      EXPECT_TRUE(WideningIsWrong<float>(type) && WideningIsWrong<__nv_bfloat16>(type)) << QuantTypeName(type);
    }
  }
  const PlantedBug nibbles("quant_nibbles_swapped");
  for (const QuantType type : {QuantType::kQ4_0, QuantType::kQ4_1, QuantType::kQ5_0, QuantType::kQ5_1, QuantType::kQ4_K,
                               QuantType::kIQ4_NL, QuantType::kIQ4_XS}) {
    EXPECT_TRUE(WideningIsWrong<float>(type) && WideningIsWrong<double>(type)) << QuantTypeName(type);
  }
}

template <typename T>
bool QuantizingIsWrong(int64_t columns) {
  QuantizeRowsRun<T> run(6, columns, 0);
  EXPECT_EQ(run.Launch(kOrders[0]), cudaSuccess);
  return !run.IsExact();
}

TEST(PlantedKernelBugs, ShowInTheQuantizingOfActivations) {
  for (const int64_t columns : {kWhole, kTail}) {
    const PlantedBug none("");
    EXPECT_FALSE(QuantizingIsWrong<float>(columns) || QuantizingIsWrong<__nv_bfloat16>(columns));
  }
  for (const char* bug : {"kernel_neighbours_scale", "kernel_missing_barrier"}) {
    const PlantedBug planted(bug);
    EXPECT_TRUE(QuantizingIsWrong<float>(kWhole) && QuantizingIsWrong<__nv_bfloat16>(kWhole)) << bug;
  }
  const PlantedBug tail("kernel_tail_off_by_one");
  EXPECT_TRUE(QuantizingIsWrong<float>(kTail) && QuantizingIsWrong<__nv_bfloat16>(kTail));
}

// Returns whether the codes of the norm differ from those of the norm that is computed without a bug.
template <typename T>
bool QuantizedNormIsWrong(const char* bug, int64_t channels) {
  ResidualNormRun<T> norm({.images = 2, .tokens = 3, .channels = channels}, {.then = Scaling::kModulate}, 1);
  EXPECT_EQ(norm.Launch(kOrders[0]), cudaSuccess);
  const PlantedBug planted(bug);
  return !norm.QuantizesExactly(kOrders[0]);
}

TEST(PlantedKernelBugs, ShowInTheNormThatQuantizes) {
  for (const int64_t channels : {kWhole, kTail}) {
    EXPECT_FALSE(QuantizedNormIsWrong<float>("", channels) || QuantizedNormIsWrong<__nv_bfloat16>("", channels));
    for (const char* bug : {"kernel_neighbours_scale", "kernel_missing_barrier"}) {
      EXPECT_TRUE(QuantizedNormIsWrong<float>(bug, channels)) << bug;
      EXPECT_TRUE(QuantizedNormIsWrong<__nv_bfloat16>(bug, channels)) << bug;
    }
    // fp32 is computed in fp32, and not rounded.
    EXPECT_TRUE(QuantizedNormIsWrong<__nv_bfloat16>("kernel_largest_before_rounding", channels));
  }
}

TEST(PlantedKernelBugs, ShowInTheActivationThatQuantizes) {
  for (const int64_t columns : {kWhole, kTail}) {
    QuantizeRowsRun<__nv_bfloat16> run(6, columns, 0);
    EXPECT_TRUE(run.FoldsExactly(Activation::kGeluTanh, false, kOrders[0]));
    EXPECT_TRUE(run.FoldsExactly(Activation::kSilu, true, kOrders[0]));
    const PlantedBug planted("kernel_largest_before_rounding");
    EXPECT_FALSE(run.FoldsExactly(Activation::kGeluTanh, false, kOrders[0]));
    EXPECT_FALSE(run.FoldsExactly(Activation::kSilu, true, kOrders[0]));
  }
}

}  // namespace
}  // namespace tessera::kernels::cuda
