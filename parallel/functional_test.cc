#include "parallel/functional.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

// A group of three ranks that all hold the same tensor: its sum is three times the tensor.
class ThreeEqualRanks final : public Communicator {
 public:
  int rank() const override { return 1; }
  int size() const override { return 3; }
  void AllReduceSum(at::Tensor& tensor) override { tensor.mul_(3); }
};

at::Tensor Values() { return at::arange(6, at::kDouble).reshape({2, 3}).requires_grad_(true); }

TEST(FunctionalTest, AGroupOfOneReturnsItsArgument) {
  SingleRank one;
  const at::Tensor x = Values();
  EXPECT_TRUE(CopyToGroup(x, one).is_same(x));
  EXPECT_TRUE(SumOverGroup(x, one).is_same(x));
}

TEST(FunctionalTest, CopyToGroupSumsOnlyTheGradient) {
  ThreeEqualRanks group;
  const at::Tensor x = Values();
  const at::Tensor y = CopyToGroup(x, group);
  EXPECT_TRUE(at::equal(y, x));
  (y * y).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), x.detach() * 6));
}

TEST(FunctionalTest, SumOverGroupSumsOnlyTheValue) {
  ThreeEqualRanks group;
  const at::Tensor x = Values();
  const at::Tensor y = SumOverGroup(x, group);
  EXPECT_TRUE(at::equal(y, x.detach() * 3));
  y.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones_like(x)));
}

}  // namespace
}  // namespace tessera
