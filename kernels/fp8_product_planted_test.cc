#include <gtest/gtest.h>

#include "kernels/ops.h"
#include "kernels/quantized_ops.h"
#include "tests/support/planted_bug.h"
#include "tests/support/random_quant_weight.h"

namespace tessera::kernels {
namespace {

TEST(PlantedFp8ProductTest, TheScaleOfAnotherRowIsNoticed) {
  at::manual_seed(1);
  const QuantWeight weight = RandomQuantWeight(QuantType::kF8E4M3, 16, 64);
  const at::Tensor x = at::randn({4, 64}) * at::tensor({1.0, 4.0, 0.25, 2.0}).unsqueeze(-1);
  const at::Tensor expected = QuantProduct(x, weight, std::nullopt);
  const auto error = [&] {
    const auto [codes, scales] = QuantizeActivations(x);
    const at::Tensor y = Fp8Product(codes, scales, weight, std::nullopt, at::kFloat);
    return ((y - expected).norm() / expected.norm()).item<double>();
  };
  // A code is within 1/16 of its number, in the mean much nearer.
  EXPECT_LT(error(), 0.05);
  const PlantedBug planted("activations_neighbours_scale");
  EXPECT_GT(error(), 0.5);
}

TEST(PlantedFp8ProductTest, TheScaleOfAnotherRowIsNoticedWhereTheNormQuantizes) {
  at::manual_seed(2);
  const at::Tensor x = at::randn({2, 5, 64}) * at::tensor({1.0f, 4.0f, 0.25f, 2.0f, 8.0f}).unsqueeze(-1);
  const at::Tensor shift = at::randn({2, 64}), scale = at::randn({2, 64});
  const auto is_exact = [&] {
    const auto [codes, scales] = QuantizeActivations(LayerNormModulate(x, shift, scale, 1e-6));
    const QuantizedRows rows = QuantizedLayerNormModulate(x, shift, scale, 1e-6);
    return at::equal(rows.codes, codes) && at::equal(rows.scales, scales);
  };
  EXPECT_TRUE(is_exact());
  const PlantedBug planted("folded_neighbours_scale");
  EXPECT_FALSE(is_exact());
}

}  // namespace
}  // namespace tessera::kernels
