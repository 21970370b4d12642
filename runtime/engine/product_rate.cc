#include "runtime/engine/product_rate.h"

#include <chrono>

namespace tessera::runtime {

double MeasureProductRate(at::Device device, at::ScalarType dtype, int64_t rows, int64_t width) {
  using Clock = std::chrono::steady_clock;
  constexpr double kLeastSeconds = 0.1;
  const c10::InferenceMode no_gradients;
  const at::TensorOptions options = at::TensorOptions(dtype).device(device);
  const at::Tensor tokens = at::ones({rows, width}, options), weight = at::ones({width, width}, options);
  at::Tensor product = at::empty({rows, width}, options);
  const auto multiply = [&](int64_t times) {
    const Clock::time_point begin = Clock::now();
    for (int64_t i = 0; i < times; ++i) at::matmul_out(product, tokens, weight);
    (void)product.flatten()[0].item();  // waits for the device
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  multiply(1);
  int64_t times = 1;
  double seconds = multiply(times);
  while (seconds < kLeastSeconds) {
    times *= 2;
    seconds = multiply(times);
  }
  return 2.0 * static_cast<double>(rows * width * width * times) / seconds;
}

}  // namespace tessera::runtime
