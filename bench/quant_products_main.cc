// Compares the speed of products with quantized weights with that of packed weights, on the CPU: `bench_quant_products
// [TOKENS [IN [OUT]]]` (1024, 3840, 3840). Prints one line of JSON for each dtype, form and instruction set: seconds of
// processor time of the product and its ratio to LinearProduct with a packed weight of the same dtype. The calls
// alternate, and each time is the shortest of several.
#include <ATen/ATen.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <limits>
#include <vector>

#include "kernels/cpu/operators.h"
#include "tests/support/instruction_sets.h"
#include "tests/support/random_quant_weight.h"

namespace tessera {
namespace {

// The time of all threads together, which other programs on the machine disturb least.
double ProcessorSeconds() {
  timespec now;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Seconds(const std::function<void()>& call) {
  const double begin = ProcessorSeconds();
  call();
  return ProcessorSeconds() - begin;
}

void Compare(at::ScalarType dtype, kernels::cpu::Isa isa, int64_t tokens, int64_t in, int64_t out) {
  constexpr int kRuns = 7;
  const at::Tensor x = at::randn({tokens, in}).to(dtype);
  const at::Tensor packed = kernels::cpu::PackWeight(at::randn({out, in}).to(dtype), isa);
  for (const kernels::QuantType type :
       {kernels::QuantType::kInt8, kernels::QuantType::kQ8_0, kernels::QuantType::kQ4_K, kernels::QuantType::kF8E4M3,
        kernels::QuantType::kNibble, kernels::QuantType::kQ5_0, kernels::QuantType::kQ6_K}) {
    if (in % kernels::BlockOf(type).values != 0) continue;
    const kernels::QuantWeight weight = RandomQuantWeight(type, out, in);
    double plain = std::numeric_limits<double>::infinity(), quantized = plain;
    for (int run = 0; run < kRuns; ++run) {
      plain = std::min(plain, Seconds([&] { kernels::cpu::LinearProduct(x, packed, std::nullopt, isa); }));
      quantized = std::min(quantized, Seconds([&] { kernels::cpu::QuantProduct(x, weight, std::nullopt, isa); }));
    }
    std::printf("{\"dtype\": \"%s\", \"form\": \"%s\", \"instruction_set\": %d, \"seconds\": %.5f, \"ratio\": %.3f}\n",
                c10::toString(dtype), kernels::QuantTypeName(type).data(), static_cast<int>(isa), quantized,
                quantized / plain);
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const auto size = [&](int i, int64_t fallback) { return i < argc ? std::strtoll(argv[i], nullptr, 10) : fallback; };
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const tessera::kernels::cpu::Isa isa : tessera::IsasOfThisMachine()) {
      if (isa == tessera::kernels::cpu::Isa::kBaseline) continue;
      tessera::Compare(dtype, isa, size(1, 1024), size(2, 3840), size(3, 3840));
    }
  }
  return 0;
}
