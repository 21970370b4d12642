#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/operators.h"
#include "kernels/ops.h"
#include "kernels/reference/operators.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random_tensor.h"
#include "tests/support/worst_error.h"

namespace tessera::kernels {
namespace {

struct Type {
  at::ScalarType type;
  // Relative to the largest output. Sums over the depth are in max(fp32, type); bf16 is rounded once at the end.
  double tolerance;
};
constexpr Type kTypes[] = {{at::kDouble, 1e-14}, {at::kFloat, 1e-5}, {at::kBFloat16, 4e-3}};

const std::vector<std::vector<int64_t>> kPaddings = {{0, 0, 0, 0}, {1, 1, 1, 1}, {0, 1, 1, 0}};

// Images narrower than a panel, and images so wide that most panels read no padding; padding on each side.
TEST(Conv2dTest, FollowsTheDefinitionOnEveryInstructionSet) {
  for (const int64_t width : {19, 70, 131}) {
    for (const int64_t kernel : {1, 2, 3}) {
      for (const std::vector<int64_t>& padding : kPaddings) {
        for (const int64_t stride : {1, 2}) {
          for (const auto& [type, tolerance] : kTypes) {
            const at::Tensor x = Random({2, 5, 6, width}, 1).to(type);
            const at::Tensor weight = Random({7, 5, kernel, kernel}, 2).to(type), bias = Random({7}, 3).to(type);
            const at::Tensor expected =
                reference::Conv2d(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble), stride, padding);
            for (const cpu::Isa isa : IsasOfThisMachine()) {
              EXPECT_LE(WorstError(cpu::Conv2d(x, weight, bias, stride, padding, isa), expected), tolerance)
                  << width << " wide, kernel " << kernel << ", stride " << stride << ", padding " << padding << ", "
                  << type << ", instruction set " << static_cast<int>(isa);
            }
          }
        }
      }
    }
  }
}

// More input and output channels than a version processes at a time; panels of pixels in more than one group.
TEST(Conv2dTest, OfManyChannelsFollowsTheDefinitionOnEveryInstructionSet) {
  const at::Tensor x = Random({2, 410, 5, 70}, 1).to(at::kBFloat16),
                   weight = Random({350, 410, 3, 3}, 2).to(at::kBFloat16);
  const at::Tensor bias = Random({350}, 3).to(at::kBFloat16);
  const at::Tensor expected =
      reference::Conv2d(x.to(at::kDouble), weight.to(at::kDouble), bias.to(at::kDouble), 1, {1, 1, 1, 1});
  for (const cpu::Isa isa : IsasOfThisMachine()) {
    EXPECT_LE(WorstError(cpu::Conv2d(x, weight, bias, 1, {1, 1, 1, 1}, isa), expected), 4e-3)
        << "instruction set " << static_cast<int>(isa);
  }
}

// The whole image, and parts that begin and end at rows of either parity, down to one row. In bf16 the sums of weights
// are rounded too.
TEST(Conv2dTest, OfAnEnlargedImageFollowsTheDefinitionOnEveryInstructionSet) {
  constexpr int64_t kHeight = 5;
  for (const int64_t width : {9, 70}) {
    for (int64_t first = 0; first < 2 * kHeight; ++first) {
      for (const int64_t count : {int64_t{1}, int64_t{4}, 2 * kHeight - first}) {
        if (first + count > 2 * kHeight) continue;
        for (const auto& [type, tolerance] : kTypes) {
          const at::Tensor x = Random({2, 5, kHeight, width}, 1).to(type);
          const at::Tensor weight = Random({7, 5, 3, 3}, 2).to(type), bias = Random({7}, 3).to(type);
          const at::Tensor enlarged = at::upsample_nearest2d(x.to(at::kDouble), {2 * kHeight, 2 * width});
          const at::Tensor whole = at::conv2d(enlarged, weight.to(at::kDouble), bias.to(at::kDouble), 1, 1);
          const at::Tensor expected = whole.slice(2, first, first + count);
          for (const cpu::Isa isa : IsasOfThisMachine()) {
            const at::Tensor actual = cpu::UpsampledConv2d(x, weight, bias, first, count, isa);
            ASSERT_EQ(actual.sizes(), expected.sizes());
            EXPECT_LE(WorstError(actual, expected), type == at::kBFloat16 ? 2 * tolerance : tolerance)
                << width << " wide, rows from " << first << ", " << count << ", " << type << ", instruction set "
                << static_cast<int>(isa);
          }
          if (type == at::kDouble) {
            EXPECT_LE(WorstError(reference::UpsampledConv2d(x, weight, bias, first, count), expected), tolerance);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera::kernels
