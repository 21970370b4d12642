#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "kernels/ops.h"
#include "tests/support/planted_bug.h"
#include "tests/support/random_tensor.h"

namespace tessera::kernels {
namespace {

// Returns the gradient with respect to x of the sum and its norm.
at::Tensor GradientOfAResidualNorm() {
  const auto tensor = [](at::IntArrayRef shape, uint64_t seed) { return Random(shape, seed).to(at::kFloat); };
  const at::Tensor x = tensor({2, 9, 33}, 1).requires_grad_(), y = tensor({2, 9, 33}, 2), vector = tensor({2, 33}, 3);
  const auto [sum, normalized] = GatedResidualNormModulate(x, vector, y, vector, vector, 1e-6);
  return torch::autograd::grad({sum, normalized}, {x}, {tensor(sum.sizes(), 4), tensor(sum.sizes(), 5)})[0];
}

TEST(PlantedGradientTest, AResidualsOwnGradientThatIsLeftOutIsNoticed) {
  const at::Tensor expected = GradientOfAResidualNorm();
  const PlantedBug planted("residual_gradient_dropped");
  EXPECT_GE((GradientOfAResidualNorm() - expected).abs().max().item<float>(), 0.1f);
}

}  // namespace
}  // namespace tessera::kernels
