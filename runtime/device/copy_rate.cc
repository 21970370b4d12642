#include "runtime/device/copy_rate.h"

#include <algorithm>

#include "models/loading/waiting_memory.h"
#include "runtime/device/mark.h"

namespace tessera::runtime {
namespace {

constexpr int64_t kCopiedBytes = int64_t{64} << 20;
constexpr int64_t kSide = 2048;  // of a product's matrices
constexpr int kRounds = 3;

// Returns the seconds of the fastest round.
template <class Work>
double FastestOf(at::Device device, const Work& work) {
  double fastest = 0;
  for (int i = 0; i < kRounds; ++i) {
    const Mark begin(device);
    work();
    const Mark end(device);
    end.Wait();
    const double seconds = end.SecondsSince(begin);
    fastest = i == 0 ? seconds : std::min(fastest, seconds);
  }
  return fastest;
}

double Rate(double amount, double seconds) { return seconds > 0 ? amount / seconds : 0; }

// Returns the bytes per second of copies of this tensor, of bytes.
double CopyRate(const at::Tensor& host, at::Device device) {
  const at::Tensor there = at::empty_like(host, host.options().device(device).pinned_memory(false));
  const double seconds = FastestOf(device, [&] { there.copy_(host, /*non_blocking=*/true); });
  return Rate(static_cast<double>(host.numel()), seconds);
}

}  // namespace

DeviceRates MeasureDeviceRates(at::Device device, at::ScalarType dtype) {
  DeviceRates rates;
  rates.copied_bytes_second = CopyRate(models::WaitingMemory().Allocate({kCopiedBytes}, at::kByte).zero_(), device);
  rates.pageable_bytes_second = CopyRate(at::zeros({kCopiedBytes}, at::kByte), device);
  const at::Tensor x = at::ones({kSide, kSide}, at::TensorOptions(dtype).device(device));
  at::Tensor product = at::empty_like(x);
  const double seconds = FastestOf(device, [&] { at::mm_out(product, x, x); });
  rates.product_flops = Rate(2.0 * kSide * kSide * kSide, seconds);
  return rates;
}

}  // namespace tessera::runtime
